from ablate import attempt


def test_the_processor_is_named_by_its_model(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\nmodel name\t: another\n")
    assert attempt.cpu_model(tmp_path / "cpuinfo") == "Fast CPU @ 3 GHz"
    assert attempt.cpu_model(tmp_path / "nowhere")
    assert attempt.describe_device("cpu").startswith("cpu: ")
