import os
import re
import unittest

import psycopg
from servers import with_schema

from dipwell import Dipwell


class Readme(unittest.TestCase):
    def test_blocks(self):
        with open(os.path.join(os.path.dirname(__file__), "..", "README.md")) as f:
            first, hold = re.findall(r"```python\n(.*?)```", f.read(), re.S)
        address, printed = with_schema(), []
        exec(first.replace("postgresql://postgres@127.0.0.1/shop", address), {"print": lambda *args: printed.append(args)})
        self.assertEqual(printed, [(True, 19, None)])
        with psycopg.connect(address) as conn:
            d = Dipwell(conn)
            d.define("tokens", rate=5000, per="1h")
            exec(hold, {"d": d, "call_the_model": lambda: 2150})
            self.assertEqual(d.check("tokens", "acme").remaining, 2850)
