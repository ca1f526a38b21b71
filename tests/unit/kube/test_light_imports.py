"""What runs on every node must stay small."""

from __future__ import annotations

import subprocess
import sys


def test_the_types_of_the_api_do_without_numpy():
    code = "import sys, kgwe.kube.resources, kgwe.kube.client, kgwe.kube.informer; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
