"""The reflection model of this example: a function. Yours is a model with a name, an address and a key."""

import json
from typing import Any


def rewrite(messages: Any) -> str:  # noqa: ARG001 - a model would read the failed cases in them
    return json.dumps({"reason": "answers lack the order id", "value": "Always pass on the order id of the parcel."})
