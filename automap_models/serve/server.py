"""Where the page is served: a socket, bound before anything is said of it, and the server on it."""

from __future__ import annotations

import os
import socket
import threading

from automap_models.errors import BadInput
from automap_models.serve import ServeRequest


def listen(request: ServeRequest) -> socket.socket:
    """A socket that listens on the host and port that are asked for.

    Raises:
        BadInput: there is no such host, the port is in use, or not for us.
    """
    try:
        kind, *_, address = socket.getaddrinfo(request.host, request.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=kind)
    except socket.gaierror:
        raise BadInput("is no interface of this machine", where=f"host {request.host}", do="leave it out") from None
    except OSError as error:
        what = f"cannot be listened on ({os.strerror(error.errno or 0)})"
        do = "give another `port`, or 0 for one that is free"
        raise BadInput(what, where=f"port {request.port}", do=do) from None


def address_of(request: ServeRequest, listener: socket.socket) -> str:
    """The address of the page."""
    host = f"[{request.host}]" if ":" in request.host else request.host
    return f"http://{host}:{listener.getsockname()[1]}/"


def require_server() -> None:
    """Refuse an installation without a web server.

    Raises:
        BadInput: it is one.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        what = "starlette and uvicorn are not installed"
        raise BadInput(what, where="serve", do="pip install 'automap-models[serve]'") from None


def serve(request: ServeRequest, listener: socket.socket) -> None:
    """Answer until the process is interrupted; the page is opened in a browser first where that is asked for."""
    import uvicorn

    from automap_models.serve.answers import price
    from automap_models.serve.questions import Question
    from automap_models.serve.web import application

    if request.open:
        import webbrowser

        webbrowser.open(address_of(request, listener))
    first = Question(model="llama3-8b", cluster="8xh100")
    threading.Thread(target=price, args=(first,), daemon=True).start()  # what is compiled is loaded before it is needed
    config = uvicorn.Config(application(remote=request.allow_remote), log_level="warning", lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])
