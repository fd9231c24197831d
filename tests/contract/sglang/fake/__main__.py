"""The fake as a process, started like the real one."""

import os
import sys

import torch
from aiohttp import web

from tests.contract.sglang.fake.build import build, parsed
from tests.contract.sglang.fake.quirks import Quirks

if __name__ == "__main__":
    torch.set_num_threads(1)
    given = parsed(sys.argv[1:])
    quirks = Quirks()
    app = build(sys.argv[1:], quirks=quirks, die=lambda: os._exit(9))
    web.run_app(app.web, host=given.host, port=given.port, keepalive_timeout=quirks.keep_alive_s)
