from promptiter.endpoint.sessions import EndpointCall as EndpointCall
from promptiter.endpoint.sessions import EndpointSession as EndpointSession
from promptiter.endpoint.sessions import open_session as open_session
