"""The PostgreSQL and the program that the tests use; the Go test in examples/ starts the first."""
import atexit
import functools
import itertools
import os
import re
import subprocess
import threading

import psycopg

from dipwell import Dipwell

SERVER = os.environ["DIPWELL_TEST_POSTGRES"]  # postgres://postgres@127.0.0.1:port/
PROGRAM = os.environ["DIPWELL_TEST_PROGRAM"]
names = itertools.count(1)


def new_database():
    """Create an empty database, and return its address."""
    name = f"python_{os.getpid()}_{next(names)}"
    with psycopg.connect(SERVER + "postgres", autocommit=True) as conn:
        conn.execute(f"create database {name}")
    return SERVER + name


@functools.lru_cache
def with_schema():
    """Return the address of a database with the schema of the package."""
    address = new_database()
    with psycopg.connect(address) as conn:
        Dipwell(conn).install()
    return address


def serve(*args):
    """Start a service, and return its address."""
    process = subprocess.Popen([PROGRAM, "serve", "--listen", "127.0.0.1:0", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    atexit.register(lambda: (process.kill(), process.wait(), reader.join(), process.stdout.close()))
    reader = threading.Thread(target=process.stdout.read, daemon=True)
    seen = ""
    for line in process.stdout:
        seen += line
        address = re.search(r"serving on (http://\S+)", line)
        if address:
            reader.start()
            return address[1]
    raise AssertionError("the service did not start: " + seen)


class Blocking:
    """An AsyncDipwell for the tests of Dipwell: each call is run to its end."""

    def __init__(self, client, loop):
        self.client, self.loop = client, loop

    def __getattr__(self, name):
        call = getattr(self.client, name)
        if not callable(call):
            return call

        async def run(*args, **kwargs):
            return await call(*args, **kwargs)

        def blocking(*args, **kwargs):
            out = self.loop.run_until_complete(run(*args, **kwargs))
            return Blocking(out, self.loop) if hasattr(out, "settle") else out

        return blocking
