"""Greedy TCP streams between two hosts.

python traffic.py sink ADDRESS              # takes all bytes that arrive
python traffic.py source ADDRESS STREAMS    # sends for ever
"""

import socket
import sys
import threading

PORT = 29_900  # inside a network namespace of our own: nobody else is there
PIECE = bytes(256 * 1024)


def drain(connection: socket.socket) -> None:
    """Take all bytes of a connection."""
    while connection.recv(len(PIECE)):
        pass


def flood(address: str) -> None:
    """Send for ever."""
    with socket.create_connection((address, PORT), timeout=60) as connection:
        connection.settimeout(None)
        while True:
            connection.sendall(PIECE)


def main() -> None:
    """Be the sink or the source, as the command says."""
    if sys.argv[1] == "sink":
        with socket.create_server((sys.argv[2], PORT)) as server:
            while True:
                connection, _ = server.accept()
                threading.Thread(target=drain, args=(connection,), daemon=True).start()
    streams = [
        threading.Thread(target=flood, args=(sys.argv[2],)) for _ in range(int(sys.argv[3]))
    ]
    for stream in streams:
        stream.start()


if __name__ == "__main__":
    main()
