"""The stand-in for platformdirs."""

from __future__ import annotations

import subprocess
import sys


def test_whoever_asks_for_a_directory_gets_that_of_the_real_module() -> None:
    code = (
        "import sys\n"
        "import workbench.tui\n"
        "from platformdirs import user_downloads_path\n"
        "assert 'platformdirs.api' not in sys.modules\n"
        "found = user_downloads_path()\n"
        "import platformdirs\n"
        "assert 'platformdirs.api' in sys.modules\n"
        "assert found == platformdirs.user_downloads_path()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=110)


def test_another_name_loads_the_real_module() -> None:
    code = (
        "import sys\n"
        "import workbench.tui\n"
        "from platformdirs import PlatformDirs\n"
        "from platformdirs.api import PlatformDirsABC\n"
        "assert issubclass(PlatformDirs, PlatformDirsABC)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=110)
