import asyncio
import http.server
import os
import tempfile
import threading
import unittest

import httpx
from calls import Calls
from servers import Blocking, serve

from dipwell import AsyncDipwell, Dipwell, DipwellError

ADDRESS = serve()


class OverHTTP(Calls):
    sql = False


class Urllib(OverHTTP, unittest.TestCase):
    d = Dipwell.http(ADDRESS)


class Httpx(OverHTTP, unittest.TestCase):
    def setUp(self):
        client = httpx.Client()
        self.addCleanup(client.close)
        self.d = Dipwell.http(ADDRESS + "/", client=client)


class AsyncHttpx(OverHTTP, unittest.TestCase):
    def setUp(self):
        self.loop = asyncio.new_event_loop()
        self.addCleanup(self.loop.close)
        client = httpx.AsyncClient()
        self.addCleanup(lambda: self.loop.run_until_complete(client.aclose()))
        self.d = Blocking(AsyncDipwell.http(ADDRESS, client=client), self.loop)


class Answers(unittest.TestCase):
    def test_token(self):
        with tempfile.TemporaryDirectory() as directory:
            token = os.path.join(directory, "token")
            with open(token, "w") as f:
                f.write("a-secret-of-some-length\n")
            address = serve("--limit", "login=2/1h", "--admin-token-file", token)
            d = Dipwell.http(address, token="a-secret-of-some-length")
            self.assertEqual(d.take("login", "k").remaining, 1)
            self.assertEqual(d.reset("login", "k").remaining, 2)
        with self.assertRaises(DipwellError) as caught:
            Dipwell.http(address, token="wrong").reset("login", "k")
        self.assertEqual((caught.exception.code, caught.exception.field), (401, "Authorization"))

    def test_no_service(self):
        class Broken(http.server.BaseHTTPRequestHandler):
            status = 429

            def do_POST(self):
                self.send_response(self.status)
                self.end_headers()
                self.wfile.write(b"<h1>a proxy's own page</h1>")

            def log_message(self, *args):
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Broken)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        d = Dipwell.http(f"http://127.0.0.1:{server.server_port}")
        for Broken.status in (429, 502, 200):
            with self.assertRaises(DipwellError) as caught:
                d.take("login", "k")
            self.assertEqual((caught.exception.code, caught.exception.field), (Broken.status, None))
        server.shutdown()
        server.server_close()
        with self.assertRaises(OSError):
            d.take("login", "k")

    def test_install(self):
        with self.assertRaises(DipwellError) as caught:
            Dipwell.http(ADDRESS).install()
        self.assertEqual(caught.exception.field, "install")
