"""Models by their id on the Hugging Face hub: the table, the order of the places that are looked in, and what never asks."""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli.main import main
from vramcast.core.errors import UsageError
from vramcast.datasets.run import Workload
from vramcast.hardware.cards import device
from vramcast.jobs import hub, targets
from vramcast.jobs.stub_checkpoint import write_stub

ROOT = Path(__file__).parents[2]
ROWS = hub._tables()["models"]
OWN = [name for name, row in ROWS.items() if "like" not in row]
TINY = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 64, "n_positions": 32}
COMMIT = "0" * 40
# The number of parameters on the hub's page of each model (safetensors), which no row has.
PUBLISHED = {
    "openai-community/gpt2-xl": 1_557_611_200,
    "EleutherAI/pythia-1b": 1_011_781_632,
    "facebook/opt-350m": 331_196_416,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": 46_702_792_704,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "openai/gpt-oss-20b": 20_914_757_184,
    "ibm-granite/granite-3.3-8b-instruct": 8_170_864_640,
    "google/gemma-2-2b": 2_614_341_888,
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552,
    "google/flan-t5-base": 247_577_856,
    "openai/clip-vit-base-patch32": 151_277_313,
    "llava-hf/llava-1.5-7b-hf": 7_063_427_072,
    "google/paligemma-3b-pt-224": 2_923_466_480,
}


# ------------------------------------------------------------------------------------------------ the table
def test_table_has_enough_models() -> None:
    assert len(OWN) >= 60
    assert len(ROWS) - len(OWN) >= 60


def test_every_source_is_a_permalink_with_date_and_licence() -> None:
    for source in hub._tables()["sources"].values():
        assert re.search(r"^https://github\.com/.*(/[0-9a-f]{40}|/v\d+\.\d+\.\d+)(/|$)", source["url"])
        assert isinstance(source["date"], datetime.date)
        assert source["licence"]


def test_every_row_has_a_source() -> None:
    used = {ROWS[name]["source"] for name in OWN}
    assert used == set(hub._tables()["sources"])
    assert all(ROWS[row["like"]].keys() >= {"source", "config"} for row in ROWS.values() if "like" in row)


def test_ids_have_the_form_of_the_hub() -> None:
    assert all(hub.is_hub_id(name) for name in ROWS)
    assert len({name.lower() for name in ROWS}) == len(ROWS)


@pytest.mark.parametrize("size", ["1.5B", "7B", "14B"])
def test_instruct_models_of_qwen_have_a_quarter_of_the_positions(size: str) -> None:
    """An engine keeps a row of angles for each position."""
    found = [hub.table_config(f"Qwen/Qwen2.5-{name}") for name in (size, f"{size}-Instruct", f"Coder-{size}-Instruct")]
    assert [one and one.values["max_position_embeddings"] for one in found] == [131_072, 32_768, 32_768]


def test_variant_has_the_sizes_of_its_model() -> None:
    base, tuned = hub.table_config("google/gemma-2-2b"), hub.table_config("google/gemma-2-2b-it")
    assert base is not None
    assert tuned is not None
    assert tuned.values == {**base.values, "dtype": "bfloat16"}
    assert (tuned.model_type, tuned.source) == ("gemma2", base.source)
    assert ROWS["google/gemma-2-2b"]["config"]["model_type"] == "gemma2"  # a row is not changed by reading it


@pytest.mark.integration  # imports the configuration classes of forty types
def test_every_row_is_a_configuration(need: Callable[[str], Any]) -> None:
    transformers = need("transformers")
    for name in ROWS:
        row = hub.table_config(name)
        assert row is not None
        plain = transformers.AutoConfig.for_model(row.model_type)
        known = {*plain.to_dict(), *plain.attribute_map, "rope_theta", "num_labels", "architectures", "head_dim"}
        known |= {"decoder_start_token_id"}
        assert row.values.keys() <= known, name
        config = transformers.AutoConfig.for_model(row.model_type, **row.values)
        if config.is_encoder_decoder and row.model_type != "detr":
            assert config.decoder_start_token_id is not None, name  # else a job with labels fails
        assert str(config.dtype).removeprefix("torch.") == row.values.get("dtype", "None")


@pytest.mark.integration  # models of 47 billion parameters without weights, for seconds
@pytest.mark.parametrize("name", PUBLISHED)
def test_model_has_the_published_number_of_parameters(name: str, need: Callable[[str], Any]) -> None:
    torch, _ = need("torch"), need("transformers")
    with torch.device("meta"):
        model = targets.build(f"hf:{name}")
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED[name]


# ------------------------------------------------------------------------------------------------ what is an id
@pytest.mark.parametrize("name", ["bert", "config.json", "org/config.json", "./org/name", "/org/name", "a/b/c", "../a", "org/"])
def test_path_or_type_is_no_id(name: str) -> None:
    assert not hub.is_hub_id(name)


def test_existing_folder_wins_over_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "openai-community" / "gpt2"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TINY))
    monkeypatch.chdir(tmp_path)
    assert targets.resolved("hf:openai-community/gpt2") == "hf:openai-community/gpt2"
    assert "not in the data set's folder" in targets.refusal("hf:openai-community/gpt2")
    assert '"n_embd":16' in targets.inlined("hf:openai-community/gpt2", tmp_path)


# ------------------------------------------------------------------------------------------------ the cache
@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, need: Callable[[str], Any]) -> Callable[..., None]:
    """Return what puts a config.json into an empty Hugging Face cache; the hub is off."""
    constants = need("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def put(name: str, text: str) -> None:
        folder = tmp_path / f"models--{name.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text(COMMIT)
        (folder / "snapshots" / COMMIT).mkdir(parents=True)
        (folder / "snapshots" / COMMIT / "config.json").write_text(text)

    return put


def test_cache_comes_before_the_table(cached: Callable[..., None]) -> None:
    assert hub.hub_config("openai-community/gpt2") == hub.table_config("openai-community/gpt2")
    cached("openai-community/gpt2", json.dumps(TINY))
    found = hub.hub_config("openai-community/gpt2")
    assert (found.source, found.model_type, found.values["n_embd"]) == ("cache", "gpt2", 16)


def test_unknown_id_says_what_was_tried(cached: Callable[..., None]) -> None:
    with pytest.raises(UsageError) as error:
        targets.resolved("hf:meta-llama/Llama-3.1-8b")
    text = str(error.value)
    assert "the Hugging Face cache lacks it, the hub was not asked (HF_HUB_OFFLINE is set), and the built-in table" in text
    assert "Did you mean hf:meta-llama/Llama-3.1-8B? Else give its config.json: hf:PATH/config.json." in text


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("QWEN/qwen3-8b", ["Qwen/Qwen3-8B"]),
        ("somebody/gpt2", ["openai-community/gpt2"]),
        ("meta-llama/Llama-3.1-8B-Instuct", ["meta-llama/Llama-3.1-8B-Instruct"]),
        ("zzzz/123456789", []),
    ],
)
def test_suggests_close_ids(name: str, meant: list[str]) -> None:
    assert hub.similar_ids(name)[:1] == meant


def test_table_answers_without_huggingface_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert hub.hub_config("openai-community/gpt2").is_from_table
    with pytest.raises(UsageError, match="huggingface_hub is not installed"):
        hub.hub_config("somebody/something")


def test_resolved_target_has_the_config_and_what_was_typed(cached: Callable[..., None]) -> None:
    cached("org/small", json.dumps(TINY))
    typed = 'hf:org/small?{"n_layer": 2}'
    found = targets.resolved(typed)
    assert found.startswith("hf:gpt2?")
    assert targets.Target.parse(found).options["n_layer"] == 2
    assert targets.as_typed(found) == typed
    assert targets.as_typed("hf:gpt2") == "hf:gpt2"
    assert targets.as_typed(None) is None
    assert "may open a file" in targets.refusal(found)  # a data set cannot show another name than it builds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "cannot be read"),
        ("[]", "has no model_type"),
        ('{"hidden_size": 1}', "has no model_type"),
        (json.dumps({**TINY, "quantization_config": {"quant_method": "gptq"}}), r"are quantized \(gptq\)"),
    ],
)
def test_rejects_a_config_that_describes_no_model(cached: Callable[..., None], text: str, message: str) -> None:
    cached("org/small", text)
    with pytest.raises(UsageError, match=message):
        targets.resolved("hf:org/small")


@pytest.mark.integration
def test_code_of_the_hub_is_not_run(cached: Callable[..., None], need: Callable[[str], Any]) -> None:
    need("transformers")
    code = {"auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
    cached("org/code", json.dumps({**TINY, "model_type": "its_own", **code}))
    with pytest.raises(UsageError, match=r"'its_own' is code on the hub \(auto_map\), which is not run: give a factory"):
        targets.build(targets.resolved("hf:org/code"))
    cached("org/both", json.dumps({**TINY, **code}))  # transformers has the type itself
    model = targets.build(targets.resolved("hf:org/both"))
    assert type(model).__name__ == "GPT2LMHeadModel"
    assert not hasattr(model.config, "auto_map")
    assert not hasattr(model.config, "typed_hub_target")


@pytest.mark.integration
def test_number_of_classes_replaces_the_names_of_a_config(cached: Callable[..., None], need: Callable[[str], Any]) -> None:
    need("transformers")
    small = {"model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    names = {"id2label": {str(number): f"class {number}" for number in range(5)}}
    cached("org/images", json.dumps({**small, **names}))
    found = targets.resolved("hf:org/images")
    assert targets.build(found).classifier.out_features == 5
    assert targets.build(found, num_classes=7).classifier.out_features == 7


def test_type_without_organization_suggests_the_id(need: Callable[[str], Any]) -> None:
    need("transformers")
    with pytest.raises(UsageError, match="did you mean hf:google-bert/bert-base-uncased"):
        targets.build("hf:bert-base-uncased")


# ------------------------------------------------------------------------------------------------ what never asks
@pytest.fixture
def no_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that looks into the cache or asks the hub."""

    def fail(name: str) -> None:
        pytest.fail(f"{name} was looked up")

    monkeypatch.setattr(hub, "_cached", fail)
    monkeypatch.setattr(hub, "_fetched", fail)


@pytest.mark.usefixtures("no_look_up")
def test_data_set_is_answered_from_the_table_alone(need: Callable[[str], Any], tmp_path: Path) -> None:
    need("transformers")
    known, unknown = "hf:openai-community/gpt2", "hf:org/unknown"
    assert targets.refusal(known) == ""
    assert "the built-in table of" in targets.refusal(unknown)
    assert "may open a file" in targets.refusal(f'{known}?{{"auto_map": {{"AutoModel": "x.Y"}}}}')
    assert targets.inlined(unknown, tmp_path) == unknown
    batch = ("1x8:int64<64",)
    for trust in (False, True):
        assert Workload("row", target=known, batch=batch).job(device("h200"), trust=trust).target == known
    assert Workload("row", target=unknown, batch=batch).job(device("h200"), trust=True).target == unknown
    with pytest.raises(UsageError, match="is not run"):
        Workload("row", target=unknown, batch=batch).job(device("h200"))
    with pytest.raises(UsageError, match="the hub is not asked here"):
        targets.build(unknown)
    small = {key: value for key, value in TINY.items() if key != "model_type"}
    assert targets.build(f"{known}?{json.dumps(small)}").config.n_embd == 16


# ------------------------------------------------------------------------------------------------ the hub
class _Hub(BaseHTTPRequestHandler):
    """A hub of three models, as huggingface_hub reads it: org/small, the gated org/gated, and org/slow."""

    asked: tuple[str, ...] = ()

    def do_HEAD(self) -> None:
        """Answer what the file is."""
        self._answer(with_body=False)

    def do_GET(self) -> None:
        """Answer the file."""
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        type(self).asked += (f"{self.command} {self.path}",)
        body = json.dumps(TINY).encode()
        if self.path.startswith("/org/slow/"):
            threading.Event().wait(3)
        if self.path == "/org/small/resolve/main/config.json" or self.path == f"/org/small/resolve/{COMMIT}/config.json":
            self.send_response(200)
            self.send_header("ETag", '"abc"')
        else:
            reason = "GatedRepo" if self.path.startswith("/org/gated/") else "RepoNotFound"
            body = b"{}"
            self.send_response(403 if reason == "GatedRepo" else 404)
            self.send_header("X-Error-Code", reason)
            self.send_header("X-Error-Message", reason)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    """Yield the address of a hub on this machine."""
    _Hub.asked = ()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def _looked_up(name: str, home: Path, address: str, **environment: str) -> tuple[str, str]:
    """Return what another process finds for an id, and its stderr."""
    code = (
        "import sys\nfrom vramcast.core.errors import UsageError\nfrom vramcast.jobs import hub\n"
        "try:\n    found = hub.hub_config(sys.argv[1]); print(found.source, found.model_type)\n"
        "except UsageError as error:\n    print(error)"
    )
    ours = {"HF_ENDPOINT": address, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGINGFACE_"))}
    run = subprocess.run(
        [sys.executable, "-c", code, name], cwd=ROOT, env={**inherited, **ours, **environment}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    return run.stdout.strip(), run.stderr


@pytest.mark.integration
def test_hub_is_asked_for_the_config_alone_and_once(need: Callable[[str], Any], tmp_path: Path, address: str) -> None:
    need("huggingface_hub")
    assert _looked_up("org/small", tmp_path, address) == ("hub gpt2", "")  # without a progress bar
    assert {path.rpartition("/")[2] for path in _Hub.asked if "/org/" in path} == {"config.json"}
    asked = _Hub.asked
    assert _looked_up("org/small", tmp_path, address)[0] == "cache gpt2"
    assert _Hub.asked == asked


@pytest.mark.integration
def test_hub_off_is_not_asked(need: Callable[[str], Any], tmp_path: Path, address: str) -> None:
    need("huggingface_hub")
    said, _ = _looked_up("org/small", tmp_path, address, HF_HUB_OFFLINE="1")
    assert "the hub was not asked (HF_HUB_OFFLINE is set)" in said
    assert _Hub.asked == ()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("org/gated", "its files on the hub are gated (accept the license on its page, then run: hf auth login)"),
        ("org/missing", "has no such model, or a private one (run: hf auth login)"),
        ("org/slow", "could not be reached (ReadTimeout)"),
    ],
)
def test_refusal_of_the_hub_is_named(need: Callable[[str], Any], tmp_path: Path, address: str, name: str, reason: str) -> None:
    need("huggingface_hub")
    said, _ = _looked_up(name, tmp_path, address, HF_HUB_ETAG_TIMEOUT="1")
    assert reason in said
    assert "the built-in table" in said


@pytest.mark.integration
def test_table_answers_where_the_hub_does_not(need: Callable[[str], Any], tmp_path: Path, address: str) -> None:
    need("huggingface_hub")
    for endpoint in (address, "http://127.0.0.1:9"):  # a hub without the model, and no hub
        said, _ = _looked_up("openai-community/gpt2", tmp_path, endpoint)
        assert said.endswith("configuration_gpt2.py gpt2") or said.endswith("src/transformers/models gpt2")


# ------------------------------------------------------------------------------------------------ the whole way
def test_estimates_a_model_of_the_table(
    need: Callable[[str], Any], auto_tracer: str, cached: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    need("transformers")
    words = ["--batch", "input_ids=2x64:int64<50257", "--batch", "labels=2x64:int64<50257", "--tracer", auto_tracer]
    assert main(["estimate", "hf:openai-community/gpt2", *words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["target"] == "hf:openai-community/gpt2"
    parameters = 124_439_808 * 4
    assert parameters <= answer["breakdown"]["parameters"] < 1.05 * parameters


def test_estimate_names_a_model_of_the_hub_as_typed(
    need: Callable[[str], Any], auto_tracer: str, cached: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    need("transformers")
    cached("org/small", json.dumps(TINY))
    words = ["--batch", "input_ids=2x8:int64<64", "--batch", "labels=2x8:int64<64", "--tracer", auto_tracer, "--json"]
    assert main(["estimate", "hf:org/small", *words]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "hf:org/small"
    assert main(["check", "hf:org/small", *words, "--on", "a100-40gb"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "hf:org/small"


@pytest.mark.integration  # imports transformers, for seconds
def test_stub_checkpoint_takes_an_id(need: Callable[[str], Any], cached: Callable[..., None], tmp_path: Path) -> None:
    need("transformers")
    cached("org/small", json.dumps({**TINY, "bos_token_id": 60, "eos_token_id": 61}))
    stub = write_stub("org/small", tmp_path / "stub")
    assert json.loads((stub.folder / "config.json").read_text())["n_embd"] == 16
    assert "typed_hub_target" not in (stub.folder / "config.json").read_text()
