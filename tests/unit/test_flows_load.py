"""A configuration is read whole, told where it comes from, and told all its faults at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.configuration.load import list_profiles, list_values, load_config
from tasks.errors import ConfigError

MINIMAL = """
extends: demo
store: {uri: out/run1}
sources:
  mine: {path: rows.jsonl, mapping: {prompt: question}}
"""


def write(folder: Path, text: str, name: str = "run.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def faults(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(write(folder, text))
    return [str(issue) for issue in caught.value.issues]


def test_places_are_taken_from_beside_the_file_that_names_them(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, MINIMAL)).config
    assert config.store.uri == (tmp_path / "out/run1").as_uri()
    assert config.sources["mine"].path == str(tmp_path / "rows.jsonl")


def test_origins_name_profile_file_override_and_default(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    values = list_values(path, ["sampling.top_k=7"])
    assert values["sampling.top_k"] == {"value": 7, "origin": "--set sampling.top_k"}
    assert values["model.context_length"]["origin"].startswith("profile demo:")
    assert values["sources.mine.mapping.prompt"]["origin"] == f"{path}:5:38"
    assert values["gates.truncation"]["origin"] == "default"


def test_all_faults_are_told_at_once_with_place_key_nearest_key_and_range(tmp_path: Path) -> None:
    text = MINIMAL + "sampling:\n  temprature: 1\n  top_p: 3\ngates: {truncation: lots}\n"
    told = faults(tmp_path, text)
    assert len(told) == 3
    here = tmp_path / "run.yaml"
    assert f"{here}:7:3: sampling.temprature: unknown key (did you mean `temperature`?)" in told
    (top_p,) = [line for line in told if "sampling.top_p" in line]
    assert top_p.startswith(f"{here}:8:3:")
    assert "not 3" in top_p
    assert "> 0 and <= 1" in top_p
    assert any(line.startswith(f"{here}:9:9: gates.truncation") for line in told)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sampling: {}\nsampling: {}\n", "duplicate key"),
        ("a: &x 1\nb: *x\n", "aliases are not accepted"),
        ("- 1\n", "must be a mapping"),
        ("a: [1\n", "not valid YAML"),
        ("extends: nowhere\n", "no such file"),
        ("extends: run.yaml\n", "circle"),
        ("extends: [demo]\n", "1:1: extends: must be the name"),
        ("a:\n  b: !!set {c}\n", "2:6: -: YAML tags are not accepted"),
        ("<<: {name: a}\n", "merge keys are not accepted"),
        ("a: " + "[" * 3000 + "]" * 3000, "1:35: -: nested deeper than 32"),
        ("name: 2026-13-45\n", "not valid YAML"),
        ("extraction: {seed: " + "9" * 6000 + "}\n", "not valid YAML"),
        ("a: 1\nb: \x00\n", "2:1: -: not valid YAML"),
        ("# " + "x" * 1_000_000, "over 1,000,000 bytes"),
    ],
)
def test_a_file_that_is_no_configuration_is_one_clear_fault(
    tmp_path: Path, text: str, said: str
) -> None:
    (told,) = faults(tmp_path, text)
    assert said in told


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('store: {uri: "a\\0b"}', "3:9: store.uri: is no place"),
        ('store: {uri: "~no such user/x"}', "3:9: store.uri: is no place"),
        ('store: {uri: ""}', "3:9: store.uri: string should match"),
        ("store: [run]", "3:1: store: must be a group of settings"),
        ("serving: {urls: http://a}", "3:11: serving.urls: must be a list"),
    ],
)
def test_a_value_of_another_kind_is_a_fault_at_its_place(
    tmp_path: Path, change: str, said: str
) -> None:
    told = faults(tmp_path, MINIMAL.replace("store: {uri: out/run1}", change))
    assert any(f"run.yaml:{said}" in line for line in told), told


@pytest.mark.parametrize("name", ['""', '"a\\nb"', '"\\e[31m"', '" a"', '"' + "k" * 101 + '"'])
def test_a_source_is_named_in_a_few_printable_characters(tmp_path: Path, name: str) -> None:
    (told,) = faults(tmp_path, MINIMAL.replace("mine", f"? {name}\n  "))
    assert "1 to 100 printable characters" in told


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        ("[ftp://a]", "url 1 must be http"),
        ("['http://']", "url 1 must be http"),
        ("['http://a:99999']", "url 1 is no url"),
        ("['http://a b']", "url 1 must be http"),
        ("['http://a', 'http://me:secret@b']", "url 2 holds a password"),
        ("['http://a:1/v1']", "url 1 ends in /v1"),
        ("['http://a:1', 'http://a:1/']", "url 2 stands there twice"),
    ],
)
def test_a_server_to_attach_is_a_plain_address(tmp_path: Path, urls: str, said: str) -> None:
    text = MINIMAL.replace("demo", "attach") + f"serving: {{urls: {urls}}}\n"
    (told,) = faults(tmp_path, text)
    assert said in told
    assert "secret" not in told


def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes(b"name: a\n# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"run\.yaml:2:1: -: is not UTF-8 text"):
        load_config(str(tmp_path / "run.yaml"))


@pytest.mark.parametrize("name", ["", "/", "~nobody-here/x", "a\0b", "x" * 5000])
def test_an_impossible_name_is_no_such_file(name: str) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(name)


def test_a_relative_folder_of_the_model_lies_beside_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    for given, meant in (("./model", str(tmp_path / "model")), ("Qwen/Qwen3.6-27B",) * 2):
        text = MINIMAL + f"model: {{path: {given}}}\n"
        assert load_config(write(tmp_path, text, "other.yaml")).config.model.path == meant
    assert load_config(path).config.model.path == "builtin:simulator"


def test_a_missing_file_lists_the_profiles() -> None:
    with pytest.raises(ConfigError, match="shipped profiles: attach, b200-7x, demo"):
        load_config("nowhere.yaml")


@pytest.mark.parametrize("text", ["sampling", "=1", "sampling.top_k.x=1", "a..b=1", "x=[1"])
def test_a_malformed_override_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        load_config(write(tmp_path, MINIMAL), [text])


def test_every_shipped_profile_is_whole_but_for_what_is_the_users() -> None:
    mine = ["store.uri=s3://bucket/run", "sources={a: {path: x.jsonl, mapping: {prompt: q}}}"]
    for name in list_profiles():
        urls = ["serving.urls=['http://127.0.0.1:1']"] if name == "attach" else []
        config = load_config(name, mine + urls).config
        written = list_values(name, mine + urls)
        assert config.name == name
        for key in config.sampling.model_fields_set:
            assert written[f"sampling.{key}"]["origin"].startswith("profile")
        assert config.sampling.model_fields_set == set(type(config.sampling).model_fields)


def test_identity_ignores_servers_gates_and_folders(tmp_path: Path) -> None:
    one = load_config(write(tmp_path, MINIMAL)).config
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = load_config(write(elsewhere, MINIMAL), ["serving.n_servers=2", "gates.truncation=0.5"])
    assert one.asked() == other.config.asked()
    changed = load_config(write(tmp_path, MINIMAL), ["sampling.top_k=7"]).config
    assert one.asked() != changed.asked()
