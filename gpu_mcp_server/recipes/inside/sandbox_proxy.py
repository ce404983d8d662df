"""The ways out of an agent's sandbox, which has no network: Unix sockets in a folder that it is shown.

    sandbox_proxy.py run FOLDER [SCHEME:HOST:PORT] -- PROGRAM ...   offer the model on loopback, then run the agent
    sandbox_proxy.py tools FOLDER                                   join stdin and stdout with our tools, as MCP over
    stdio

What is offered at `PORT_INSIDE` leads to the model's address and nowhere else: that is decided at the other end. For
http it is the model itself, for https a proxy (CONNECT, RFC 9110 section 9.3.6), so that the agent checks the model's
certificate as ever.
"""

import os
import socket
import subprocess
import sys
import threading
from typing import BinaryIO, List

MODEL, TOOLS = "model.sock", "tools.sock"
PORT_INSIDE = 18080
MAX_HEAD_BYTES = 16384
PIECE_BYTES = 65536


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Pass on what comes until it ends."""
    try:
        while True:
            data = source.recv(PIECE_BYTES)
            if not data:
                break
            sink.sendall(data)
    except OSError:
        pass
    try:
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def joined(folder: str, name: str) -> socket.socket:
    """Return a connection to what listens outside."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.connect(os.path.join(folder, name))
    return end


def tunnel(client: socket.socket) -> bytes:
    """Take a proxy's CONNECT; return what came behind its head.

    Raises:
        OSError: If it is anything else.
    """
    head = b""
    while b"\r\n\r\n" not in head:
        data = client.recv(PIECE_BYTES)
        head += data
        if not data or len(head) > MAX_HEAD_BYTES:
            raise OSError("no head of a request")
    first, _, rest = head.partition(b"\r\n\r\n")
    if not first.startswith(b"CONNECT "):
        client.sendall(b"HTTP/1.1 405 Only CONNECT to the model's address\r\nContent-Length: 0\r\n\r\n")
        raise OSError("not CONNECT")
    wanted, allowed = first.split()[1].lower(), sys.argv[3].partition(":")[2].lower().encode()
    if wanted != allowed:
        client.sendall(b"HTTP/1.1 403 Only the model's address\r\nContent-Length: 0\r\n\r\n")
        raise OSError("not the model's address")
    client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
    return rest


def serve(client: socket.socket, folder: str, proxy: bool) -> None:
    """Lead one connection of the agent to its model."""
    try:
        rest = tunnel(client) if proxy else b""
        model = joined(folder, MODEL)
        model.sendall(rest)
    except OSError:
        client.close()
        return
    back = threading.Thread(target=pump, args=(model, client), daemon=True)
    back.start()
    pump(client, model)
    back.join()
    client.close()
    model.close()


def offer(folder: str, proxy: bool) -> None:
    """Listen on loopback; connections are served by threads."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", PORT_INSIDE))
    listener.listen(64)

    def accept() -> None:
        while True:
            client, _ = listener.accept()
            threading.Thread(target=serve, args=(client, folder, proxy), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def run(folder: str, address: str, command: List[str]) -> int:
    """Run the agent and return its exit code."""
    if address:
        offer(folder, address.startswith("https:"))
    code = subprocess.Popen(command).wait()
    return code if code >= 0 else 128 - code


def tools(folder: str) -> None:
    """Join stdin and stdout with our tools until these hang up."""
    end = joined(folder, TOOLS)

    def ask(stdin: BinaryIO) -> None:
        while True:
            data = os.read(stdin.fileno(), PIECE_BYTES)
            if not data:
                break
            end.sendall(data)
        end.shutdown(socket.SHUT_WR)

    threading.Thread(target=ask, args=(sys.stdin.buffer,), daemon=True).start()
    while True:
        data = end.recv(PIECE_BYTES)
        if not data:
            return
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    if sys.argv[1] == "tools":
        tools(sys.argv[2])
    else:
        split = sys.argv.index("--")
        sys.exit(run(sys.argv[2], sys.argv[3] if split == 4 else "", sys.argv[split + 1 :]))
