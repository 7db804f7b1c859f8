"""What the control plane needs to answer the gateway is cheap."""

from __future__ import annotations

import subprocess
import sys


def test_routes_load_no_ssh():
    program = "import sys, essaim.gateway.routes; sys.exit('asyncssh' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
