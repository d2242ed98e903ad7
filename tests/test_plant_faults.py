"""The faults that plant_faults.py plants are faults of the package as it is now."""

import pathlib

import plant_faults
import pytest


@pytest.mark.parametrize("fault", plant_faults.FAULTS, ids=lambda f: f.module)
def test_each_fault_changes_one_place(fault):
    text = (plant_faults.ROOT / fault.module).read_text(encoding="utf-8")
    assert text.count(fault.right) == 1
    assert fault.wrong != fault.right
    compile(text.replace(fault.right, fault.wrong), fault.module, "exec")


def test_there_are_faults_in_every_room():
    rooms = {pathlib.PurePath(f.module).parent.name for f in plant_faults.FAULTS}
    folders = {p.parent.name for p in plant_faults.ROOT.glob("tfmirror/*/__init__.py")}
    assert folders and rooms >= folders | {"tfmirror", "experiments"}


def test_a_fault_that_no_longer_fits_is_refused(tmp_path):
    fault = plant_faults.Fault("a.py", "x", "y", "a")
    (tmp_path / "a.py").write_text("x = x\n")
    with pytest.raises(ValueError, match="must hold this text once: got 2 times 'x'"):
        plant_faults.plant(fault, tmp_path)
    assert (tmp_path / "a.py").read_text() == "x = x\n"
