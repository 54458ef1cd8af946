"""The gateway as an endpoint: an agent in any language calls models through it, over HTTP on loopback."""

from traces.lazy import lazy_package

__getattr__, __dir__ = lazy_package(__name__)
