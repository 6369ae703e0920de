"""transformers' own tests of the models with deformable attention, without the patch and under it.

    python tests/pytorch/transformers_own.py CHECKOUT

CHECKOUT is a copy of transformers' repository, whose tests are not in its wheel, of the version that is
installed. Says which tests end otherwise under the patch, and exits with 1 if any does. Options after CHECKOUT
go to pytest; ``-k "not integration"`` leaves out what would download a model.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

NAMES = ("MultiScaleDeformableAttention", "multi_scale_deformable_attention")  # in files of models


def pytest_configure(config):
    """This file is a plugin of pytest too: it patches."""
    from numba_deform.torch import patch

    print("patched:", len(patch("transformers").places), "places so far")


def test_files(checkout):
    """The files with tests of models that define one of NAMES, in the installed transformers."""
    import transformers

    models = Path(transformers.__file__).parent / "models"
    # a folder may have several such files, as rt_detr has
    sources = [(file.parent.name, file.read_text("utf-8")) for file in models.glob("*/modeling_*.py")]
    found = {model for model, source in sources if any(name in source for name in NAMES)}
    files = checkout.glob("tests/models/*/test_modeling_*.py")
    return sorted(str(file.relative_to(checkout)) for file in files if file.parent.name in found)


def outcomes(checkout, files, options, patched):
    """{test: how it ended} of one run of pytest."""
    here = Path(__file__)
    with tempfile.TemporaryDirectory() as directory:
        # A plugin is found by its name: alone in a folder, or test_module.py beside it hides transformers'.
        shutil.copy(here, directory)
        path = [directory, str(here.parents[2]), str(checkout / "src"), os.environ.get("PYTHONPATH", "")]
        report = Path(directory, "report.xml")
        plugin = ["-p", here.stem] if patched else []
        command = [sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}", *plugin, *options, *files]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        status = subprocess.run(command, cwd=checkout, env=environment, check=False).returncode
        if status > 1:  # files that cannot be read would end alike in both runs
            sys.exit(f"pytest ended with {status}: its message stands above")
        cases = ElementTree.parse(report).getroot().iter("testcase")
        return {
            f"{case.get('classname')}.{case.get('name')}": next((child.tag for child in case), "passed")
            for case in cases
        }


def main(checkout, *options):
    checkout = Path(checkout).resolve()
    files = test_files(checkout)
    if not files:
        sys.exit(f"{checkout} has no tests of models with deformable attention")
    plain, patched = (outcomes(checkout, files, options, patched) for patched in (False, True))
    different = {name for name in plain.keys() | patched.keys() if plain.get(name) != patched.get(name)}
    for name in sorted(different):
        print(f"{name}: {plain.get(name, 'not run')}, under the patch {patched.get(name, 'not run')}")
    passed = sum(ended == "passed" for ended in plain.values())
    if not passed:  # with pytest-xdist a file that cannot be read is a test that fails, in both runs
        sys.exit("no test passes, so that there is nothing to compare")
    tests = f"{len(plain)} tests, {passed} pass"
    print(f"{len(files)} files, {tests}, {len(different)} end otherwise under the patch")
    sys.exit(bool(different))


if __name__ == "__main__":
    main(*sys.argv[1:])
