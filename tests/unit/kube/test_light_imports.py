"""What runs on every node must stay small."""

from __future__ import annotations

import subprocess
import sys


def test_the_types_of_the_api_do_without_what_only_some_processes_need():
    needed = "kgwe.kube.api.resources, kgwe.kube.client.client, kgwe.kube.client.informer"
    code = f"import sys, {needed}; print(sorted({{'numpy', 'google.protobuf'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_without_protobuf_pods_are_read_in_json():
    code = """
import sys
sys.modules["google.protobuf"] = None
from kgwe.kube.api import resources
from kgwe.kube.transport import codec
sys.exit(codec.Codecs(resources.POD).accept != codec.JSON)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
