"""What the machine has is read as Linux writes it."""

import pytest

from tfmirror import hardware


def test_parse_cpuinfo_takes_the_first_processor():
    text = (
        "processor\t: 0\nmodel name\t: Big CPU @ 2GHz\n"
        "flags\t\t: fpu avx512f amx_tile sse\n"
        "\nprocessor\t: 1\nmodel name\t: Other\nflags\t: avx\n"
    )
    assert hardware.parse_cpuinfo(text) == hardware.Cpu(
        model="Big CPU @ 2GHz", flags=("amx_tile", "avx512f")
    )
    assert hardware.parse_cpuinfo("") == hardware.Cpu("", ())


def test_flags_are_those_of_the_file_and_none_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "CPUINFO", tmp_path / "cpuinfo")
    assert hardware.describe_cpu() == hardware.Cpu("", ())
    assert not hardware.cpu_has_any(hardware.BFLOAT16_FLAGS)
    (tmp_path / "cpuinfo").write_text("flags\t: fpu avx512_bf16\n")
    assert hardware.cpu_has_any(hardware.BFLOAT16_FLAGS)
    assert not hardware.cpu_has_any(hardware.BFLOAT16_MATRIX_FLAGS)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 24 "
            "01:01:01 UTC 2024\nGCC version:  gcc version 11.4.0 (Ubuntu)\n",
            "535.161.08",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  "
            "Release Build  (root@a)\nGCC version:  gcc version 13.2.0\n",
            "570.86.15",
        ),
        ("GCC version:  gcc version 13.2.0 \n", ""),
        ("", ""),
    ],
)
def test_the_version_of_the_driver_is_read(text, version):
    assert hardware.parse_driver(text) == version


def test_a_driver_whose_gpus_are_hidden_on_purpose_is_none(monkeypatch, tmp_path):
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA")
    monkeypatch.setattr(hardware, "NVIDIA_DRIVER", driver)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert not hardware.has_nvidia_driver()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert hardware.has_nvidia_driver()
    driver.unlink()
    assert not hardware.has_nvidia_driver()
