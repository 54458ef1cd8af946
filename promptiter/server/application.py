"""The HTTP API: the runs of a Manager, as a FastAPI application. Its routes are in `routes`.

    app = create_application(Manager(apps, store=store), tokens=Tokens.load("tokens.yaml"))

Without tokens, everyone who reaches the address may do everything: `promptiter serve` allows that on loopback only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from promptiter.errors import PromptiterError
from promptiter.manager import Manager
from promptiter.server.errors import HttpError, answer_error
from promptiter.server.guards import CountRequests, RefuseOtherSites, RefuseTwoLengths
from promptiter.server.limits import Limits
from promptiter.server.openapi import complete_document, find_methods
from promptiter.server.parameters import describe_parameters
from promptiter.server.routes import Routes
from promptiter.server.tokens import Refusal, Tokens
from promptiter.wording import shorten

BASE_PATH = "/promptiter/v1/apps"


class _Application(FastAPI):
    """A FastAPI application whose OpenAPI document is complete."""

    has_tokens = False

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            complete_document(super().openapi(), has_tokens=self.has_tokens)
        assert self.openapi_schema is not None, "FastAPI keeps it"
        return self.openapi_schema


def create_application(
    manager: Manager,
    *,
    tokens: Tokens | None = None,
    limits: Limits | None = None,
    base_path: str = BASE_PATH,
    cors_origins: Sequence[str] = (),
    hosts: Sequence[str] | None = None,
) -> FastAPI:
    """The application. It closes the manager when it ends. Without tokens, it only answers requests to its `hosts`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with manager:
            try:
                yield
            finally:
                await routes.refinements.close()

    application = _Application(
        title="promptiter",
        version=version("promptiter"),
        lifespan=lifespan,
        openapi_url=f"{base_path.rsplit('/', 1)[0]}/openapi.json",
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    application.has_tokens = tokens is not None
    routes = Routes(manager, tokens, limits or Limits())
    application.state.refinements = routes.refinements
    application.include_router(routes.build_router(), prefix=base_path)
    application.include_router(routes.build_service_router())
    if cors_origins:
        application.add_middleware(
            CORSMiddleware,
            allow_origins=list(cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "If-None-Match", "Last-Event-ID"],
            expose_headers=["ETag", "Location", "Retry-After"],
        )
    if tokens is None:
        application.add_middleware(RefuseOtherSites, origins=cors_origins, hosts=hosts)
    application.add_middleware(RefuseTwoLengths)
    application.add_middleware(CountRequests, measures=routes.measures)
    for kind in (PromptiterError, HttpError):
        application.add_exception_handler(kind, _answer)
    application.add_exception_handler(Refusal, _refuse)
    application.add_exception_handler(RequestValidationError, _answer_wrong_parameters)
    application.add_exception_handler(HTTPException, _answer_http)
    application.add_exception_handler(Exception, _answer_unexpected)
    return application


async def _answer(request: Request, error: Exception) -> Response:
    return answer_error(error, wanted=request.path_params, apps=getattr(request.state, "apps", ()))


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal), "this answers refusals only"
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    return JSONResponse({"error": str(error)}, error.status, headers=headers)


async def _answer_wrong_parameters(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), "this answers wrong parameters only"
    problems = describe_parameters(error.errors())
    return JSONResponse({"error": "; ".join(problems), "problems": problems}, HTTPStatus.UNPROCESSABLE_ENTITY)


async def _answer_unexpected(_: Request, error: Exception) -> Response:  # noqa: ARG001 - uvicorn logs it
    return JSONResponse({"error": "the server failed; its log says why"}, HTTPStatus.INTERNAL_SERVER_ERROR)


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "this answers errors of the router only"
    headers = dict(error.headers or {})
    method, path = request.method, request.scope["path"]
    methods = find_methods(request.app.openapi(), path)
    if error.status_code == HTTPStatus.NOT_FOUND:
        known = path.rstrip("/")
        hint = f"; write {shorten(known)}" if known != path and find_methods(request.app.openapi(), known) else ""
        return JSONResponse({"error": f"unknown route {shorten(path)}{hint}"}, error.status_code)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:  # the router names those of the first route only
        headers["Allow"] = ", ".join(methods) or headers["Allow"]
        return JSONResponse(
            {"error": f"{method} is not a method of {shorten(path)}; it has {headers['Allow']}"}, 405, headers=headers
        )
    return JSONResponse({"error": str(error.detail)}, error.status_code, headers=headers)
