from promptiter.server.application import create_application as create_application
from promptiter.server.client import AsyncClient as AsyncClient
from promptiter.server.client_errors import ServerError as ServerError
from promptiter.server.limits import Limits as Limits
from promptiter.server.serving import ServerOptions as ServerOptions
from promptiter.server.serving import serve as serve
from promptiter.server.sync_client import Client as Client
from promptiter.server.tokens import Tokens as Tokens

def check_packages() -> None: ...
