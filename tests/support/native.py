"""What tests of the kernel share."""

import pytest

from pe_bench.native import build

here = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler is here")
