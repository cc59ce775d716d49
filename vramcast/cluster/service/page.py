"""The page of the service, at `/`: a form, and the answer to the question in the address.

It asks what a client of the API would ask, with the client's token and within its limits: models by name, and no code.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import HTTPException
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.security import HTTPBasic
from markupsafe import Markup

from vramcast.cluster.service.access import RefusedRequest, Rules, admit
from vramcast.cluster.service.page_form import UnknownModel, cleaned, fields, link, read, suggestions
from vramcast.cluster.service.page_reply import RELOAD_S, Reply, failure
from vramcast.cluster.service.responses import STATUS
from vramcast.cluster.service.service import Service
from vramcast.core.errors import UsageError
from vramcast.views.charts.page import render

_END: Final = "</main>\n</body>\n</html>\n"
_CHALLENGE: Final = 'Basic realm="vramcast"'
_HOW: Final = "reload the page, and give the token as the password, with any name"


def page_routes(service: Service, rules: Rules) -> APIRouter:
    """Return the route of the page."""
    router = APIRouter(include_in_schema=False)
    basic = HTTPBasic(auto_error=False)

    async def check_access(request: Request) -> None:
        """Check the token, which a browser sends as a password, and that no other site embeds the page."""
        try:
            shown = await basic(request)
        except HTTPException:
            shown = None
        admit(request, rules.clients, shown.password if shown else "", _HOW, _CHALLENGE)
        if request.headers.get("sec-fetch-dest", "document") != "document":
            raise RefusedRequest("forbidden", "Another site asked for this page as a part of its own: open the address itself.")

    async def answer(request: Request, address: Mapping[str, str]) -> Response:
        await check_access(request)
        if not address:
            return _whole(_head(address))
        reply = Reply(service, request, read(address))
        text, is_answer = await reply.html()
        return _whole(_head(address, reply.asked.title) + text, headers={} if is_answer else {"Refresh": str(RELOAD_S)})

    @router.get("/")
    async def page(request: Request) -> Response:
        given = request.query_params.multi_items()
        address = cleaned(dict(given))
        if list(address.items()) != given:
            return RedirectResponse(link(address), 303, _headers())
        try:
            return await answer(request, address)
        except UsageError as error:
            return _error(address, "usage", str(error), meant=error.meant if isinstance(error, UnknownModel) else ())
        except RefusedRequest as error:
            return _error(address, error.kind, str(error), error.headers)

    return router


@cache
def _css() -> str:
    return Markup(render("ask.css"))


@cache
def _headers() -> dict[str, str]:
    """Return the headers of each page: no script, nothing from elsewhere, no copy in a cache, and no frame around it."""
    style = base64.b64encode(hashlib.sha256(_css().encode()).digest()).decode()
    allowed = f"style-src 'sha256-{style}'; img-src data:; form-action 'self'"
    return {
        "Content-Security-Policy": f"default-src 'none'; {allowed}; base-uri 'none'; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }


def _head(address: Mapping[str, str], title: str = "", error: str = "") -> str:
    """Return the page to the end of its form, which is open if there is no title of an answer."""
    values = {"css": _css(), "fields": fields(), "suggestions": suggestions(), "error": Markup(error)}
    return render("ask.html", address=address, title=title, **values)


def _whole(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return HTMLResponse(text + _END, status, {**_headers(), **(headers or {})})


def _error(
    address: Mapping[str, str], kind: str, message: str, headers: Mapping[str, str] | None = None, meant: Sequence[str] = ()
) -> Response:
    links = [(name, link({**address, "target": name})) for name in meant]
    return _whole(_head(address, error=failure(kind, message, link(address), links)), STATUS[kind], headers)
