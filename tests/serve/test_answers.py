"""What the page is told is what `am.price` and `am.plan` say, and what it asks wrongly is refused in one sentence."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import automap_models as am
from automap_models.errors import BadInput
from automap_models.infer.app import main
from automap_models.serve import ServeRequest, limits, web
from automap_models.serve.server import listen

CONFIG = {
    "model_type": "gpt2",
    "n_embd": 256,
    "n_layer": 8,
    "n_head": 8,
    "n_positions": 512,
    "vocab_size": 2048,
    "tie_word_embeddings": False,
}
QUESTION = {"model": "gpt2", "config": json.dumps(CONFIG), "cluster": "8xh100", "global_batch": 16, "tp": 2, "pp": 2}
Ask = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(web.application(remote=False), base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture
def ask(client: TestClient) -> Ask:
    def ask(path: str, **fields: Any) -> tuple[int, dict[str, Any]]:
        given = {name: value for name, value in {**QUESTION, **fields}.items() if value is not None}
        answer = client.post(f"/api/{path}", json=given)
        return answer.status_code, answer.json()

    return ask


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "gpt2").mkdir()  # a model is called as its folder
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path / "gpt2" / "config.json")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"zero": 1, "recompute": "full", "sequence_parallel": True},
        {"schedule": "zb-v", "precision": "fp32", "runtime": "torchtitan"},
        {"layers": [1, 3, 3, 1], "vp": 2, "recompute": ["none", "full", "full", "none"]},
        {"tp": 1, "pp": 1, "precision": "fp32", "sequence": 128},
        {"lora": "16:q,v", "quantize": True, "packed": 64},
        {"loss": "dpo", "optimizer": "adamw-8bit", "states": "bf16", "sequence": 256},
        {"freeze": "embedding, block_0/q"},
    ],
)
def test_a_price_is_that_of_the_library(ask: Ask, config: str, fields: dict[str, Any]) -> None:
    status, answer = ask("price", **fields)
    given = {
        name: value for name, value in {**QUESTION, **fields}.items() if name not in ("model", "config", "cluster")
    }
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    given |= {"freeze": given["freeze"].split(", ")} if "freeze" in given else {}
    price = am.price(config, gpus="8xh100", **given)
    assert status == 200
    assert answer["step_s"] == price.step_s
    assert [rank["total"] for rank in answer["memory"]] == [memory.total for memory in price.memory]
    assert (answer["verdict"], answer["devices"]) == (price.verdict, 8)


@pytest.fixture
def profile() -> str:
    return str(Path(__file__).parents[2] / "examples" / "t5_11b_v100.npz")


@pytest.fixture
def of_profile(profile: str) -> dict[str, Any]:
    """Fields of a question about it."""
    encoded = base64.b64encode(Path(profile).read_bytes()).decode()
    return {"model": "mine", "config": None, "profile": encoded, "cluster": "C", "global_batch": None, "tp": None}


@pytest.mark.parametrize("fields", [{"pp": None, "zero": 3}, {"pp": 8, "recompute": "full"}, {"optimizer": "sgd"}])
def test_a_profile_is_priced_as_by_the_library(
    ask: Ask, profile: str, of_profile: dict[str, Any], fields: dict[str, Any]
) -> None:
    status, answer = ask("price", **of_profile, **fields)
    given = {name: value for name, value in {"pp": 2, **fields}.items() if value is not None}
    assert (status, answer["step_s"]) == (200, am.price(profile, "C", **given).step_s)


def test_what_a_profile_does_not_tell_is_greyed_out(ask: Ask, of_profile: dict[str, Any]) -> None:
    choices = ask("choices", **of_profile)[1]
    closed = {name: [choice["value"] for choice in choices[name] if choice["reason"]] for name in choices}
    assert closed["cp"] == closed["tp"] == [2, 4, 8, 16, 32]
    assert closed["recompute"] == ["selective", "offload"]
    assert closed["zero"] == []


def test_the_command_that_is_copied_prices_the_profile(
    ask: Ask,
    profile: str,
    of_profile: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(profile, "profile.npz")
    command = ask("copy/command", **of_profile)[1]["files"][""]
    code, price = main([*command.split()[1:], "--json"]), ask("price", **of_profile)[1]
    assert (code, price["fits"]) == (3, False)
    assert json.loads(capsys.readouterr().out)["step_s"] == price["step_s"]


def _archive(**arrays: Any) -> str:
    """The arrays in an .npz file, in base64."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"profile": "no base64!"}, "is no base64"),
        ({"profile": ""}, "is truncated or no .npz file"),
        ({"profile": base64.b64encode(b"PK\x03\x04").decode()}, "is truncated or no .npz file"),
        ({"profile": _archive(C=np.ones(3))}, "array A is missing"),
        ({"profile": _archive(C=np.zeros(1 << 22))}, "holds more than 16,777,216 bytes"),
        ({"profile": _archive(C=np.array([{}], dtype=object))}, "array A is missing"),
        (
            {"profile": _archive(**{name: np.array([{}], dtype=object) for name in "CAW"})},
            "array C holds Python objects",
        ),
        ({"sequence": 128}, "its samples have no tokens"),
        ({"config": "{}"}, "a profile is a model itself"),
        ({"lora": "16"}, "needs the layers of a transformer"),
        ({"tp": 2}, "which has no operations that devices could share"),
    ],
)
def test_a_wrong_profile_is_refused_in_a_sentence(
    ask: Ask, of_profile: dict[str, Any], wrong: dict[str, Any], what: str
) -> None:
    status, refusal = ask("price", **{**of_profile, **wrong})
    assert status == 422
    assert what in refusal["sentence"]


def test_a_model_by_name_costs_what_the_command_says(client: TestClient, capsys: pytest.CaptureFixture[str]) -> None:
    question = {"model": "llama3-8b", "cluster": "dgx-h100-4", "tp": 4, "global_batch": 64}
    answer = client.post("/api/price", json=question).json()
    words = "plan llama3-8b --topo dgx-h100-4 --tp 4 --global-batch 64 --price --json"
    assert main(words.split()) == 0
    assert answer["step_s"] == json.loads(capsys.readouterr().out)["step_s"]


def test_the_schedule_that_is_drawn_ends_with_the_step(ask: Ask) -> None:
    price, timeline = ask("price")[1], ask("timeline")[1]
    assert timeline["length_s"] == pytest.approx(price["step_s"])
    assert len(timeline["blocks"]["forward"]) == price["strategy"]["micro_batches"] * 2 == 16
    assert max(end for *_, end in timeline["blocks"]["update"]) == timeline["length_s"]


def test_a_schedule_of_too_many_passes_is_not_drawn(ask: Ask) -> None:
    status, refusal = ask("timeline", global_batch=65536)
    assert (status, refusal["what"]) == (422, "131,072 passes are too many to draw")


@pytest.mark.parametrize("fields", [{}, {"vp": 2}, {"pp": 4, "zero": 3, "runtime": "fsdp"}, {"runtime": "megatron"}])
def test_a_value_has_a_reason_where_its_price_is_refused(ask: Ask, fields: dict[str, Any]) -> None:
    choices = ask("choices", **fields)[1]
    assert {*choices} == {"tp", "pp", "cp", "ep", "etp", "dp_replicate", *web.answers.LANES}
    for name, values in choices.items():
        for choice in values:
            status, _ = ask("price", **{**fields, name: choice["value"]})
            assert (status == 200) == (choice["reason"] is None), (name, choice)


def test_a_contradiction_leaves_the_values_that_solve_it_and_all_it_is_not_about(ask: Ask) -> None:
    """tp 8 and pp 2 want 16 of the 8 devices: smaller ones are open, and so is ZeRO, whose values are not to blame."""
    assert ask("price", tp=8)[0] == 422
    choices = ask("choices", tp=8)[1]
    assert [choice["value"] for choice in choices["tp"] if choice["reason"] is None] == [1, 2, 4, 8]
    assert [choice["reason"] for choice in choices["zero"]] == [None] * 4


WRONG: dict[str, tuple[Any, ...]] = {
    "model": ("no-such", "", "../config.json", "/etc/passwd", 3, None, "x" * 201, "my_module:make_model"),
    "config": ("", "{", "[]", "{}", '{"model_type": "no-such"}', 3, "\ud800"),
    "cluster": ("no-such", "", "0xh100", "8xno-such", "/etc/passwd", "../A", "9x9xh100", 8, None, "8xcpu"),
    "sequence": (0, -1, "128", 2.5, 2**31, 513),
    "global_batch": (0, 3, True, 10**20),
    "runtime": ("no-such", "../megatron", 3),
    "micro_batch": (0, 3, "1"),
    "schedule": ("no-such", 3),
    "recompute": ("no-such", ["none"], ["none", 3], [], 1),
    "recompute_blocks": ([1], [-1, 1], [9, 9], "1,1"),
    "zero": (4, -1, "1", 1.5),
    "sequence_parallel": ("yes", 1),
    "precision": ("no-such", "nvfp4", 16),
    "dispatcher": ("no-such", "deepep"),
    "layers": ([8], [4, 5], [-1, 9], ["a"], [1] * 5000),
    "etp": (3, 0),
    "lora": ("0", "x", "16:no-such", 16, ""),
    "freeze": ("no-such", "block_99", 3),
    "quantize": (True, "yes"),
    "loss": ("no-such", 3),
    "optimizer": ("no-such", 1),
    "states": ("fp8", 1),
    "packed": (0, -1, "64", 2.5),
    "unknown": (1,),
    **dict.fromkeys(("tp", "pp", "dp", "cp", "ep"), (0, -1, 3, 16, 2.5, "2", [2])),
    "vp": (0, -1, 99, "2"),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_each_wrong_value_of_a_field_is_refused_in_a_sentence(client: TestClient, name: str, value: Any) -> None:
    question = {**QUESTION, name: value}
    if name == "model" and value != 3:
        question.pop("config")
    content = json.dumps({key: item for key, item in question.items() if item is not None})
    answer = client.post("/api/price", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    refusal = answer.json()
    assert "\n" not in refusal["sentence"]
    assert refusal["what"]
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("content", "kind", "what"),
    [
        (b"{", "application/json", "is not valid JSON"),
        (b"[]", "application/json", "not a mapping"),
        (b"\xff", "application/json", "is not valid JSON"),
        (json.dumps(QUESTION).encode(), "text/plain", "is not declared as application/json"),
        (json.dumps({"config": " " * limits.LARGEST_QUESTION}).encode(), "application/json", "has more than"),
    ],
)
def test_a_body_that_is_no_question_is_refused(client: TestClient, content: bytes, kind: str, what: str) -> None:
    for path in ("price", "choices", "timeline", "copy/command", "search"):
        answer = client.post(f"/api/{path}", content=content, headers={"Content-Type": kind})
        assert answer.status_code == 422
        assert what in answer.json()["what"]


def test_no_file_is_opened_that_a_question_names(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are called as models, clusters and runtimes are, and would be refused if they were read."""
    monkeypatch.chdir(tmp_path)
    for name in ("gpt2", "8xh100", "megatron", "llama3-8b"):
        Path(name).write_text("no such thing")
    assert ask("price", runtime="megatron")[0] == 200
    assert ask("price", model="llama3-8b", config=None)[0] == 200


def test_another_name_of_this_machine_is_refused(client: TestClient) -> None:
    """A page of another site that leads here by a name of its own does not get an answer."""
    assert client.get("/api/models", headers={"Host": "example.org"}).status_code == 400
    remote = TestClient(web.application(remote=True), base_url="http://example.org")
    assert remote.get("/api/models").status_code == 200


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    parts = [event.split("\n") for event in text.strip().split("\n\n")]
    return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in parts]


def test_the_best_is_that_of_am_plan(client: TestClient, config: str) -> None:
    """Other fields of the question are where the search begins from, and not fixed."""
    *news, (kind, best) = events(client.post("/api/search", json=QUESTION).text)
    expected = am.plan(config, gpus="8xh100", global_batch=16)
    assert {name for name, _ in news} == {"progress"}
    assert (kind, best["step_s"]) == ("best", expected.cost.step_s)
    assert best["bound_s"] == expected.bound.value
    assert best["strategy"]["tp"] != 2


def test_the_best_for_a_program_is_one_that_it_runs(client: TestClient) -> None:
    """Without Megatron's limits the search answers with ZeRO-2, which Megatron has not, and the price is refused."""
    question = {"model": "llama3-8b", "cluster": "8xh100", "sequence": 2048, "global_batch": 32, "runtime": "megatron"}
    _, best = events(client.post("/api/search", json=question).text)[-1]
    assert best["for"] == "megatron"
    strategy = {name: value for name, value in best["strategy"].items() if name != "micro_batches"}
    priced = client.post("/api/price", json={**question, **strategy}).json()
    assert priced["step_s"] == pytest.approx(best["step_s"])


def test_a_search_says_what_does_not_fit(client: TestClient) -> None:
    text = client.post("/api/search", json={"model": "llama3-405b", "cluster": "1xt4", "global_batch": 1}).text
    kind, refusal = events(text)[-1]
    assert kind == "error"
    assert "fits" in refusal["sentence"]


def test_a_search_that_takes_too_long_ends(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LONGEST_SEARCH_S", 0.0)
    kind, refusal = events(client.post("/api/search", json={"model": "llama3-8b", "cluster": "64xh100"}).text)[-1]
    assert (kind, refusal["what"]) == ("error", "took more than 0 s")


def test_a_search_is_refused_where_many_wait(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_WAITING", -1)
    answer = client.post("/api/search", json=QUESTION)
    assert answer.status_code == 422
    assert answer.json()["do"] == "try again later"


@pytest.mark.parametrize(
    "fields",
    [
        {"layers": [5, 3], "zero": 1, "sequence_parallel": True, "runtime": "megatron", "sequence": 256},
        {"lora": "16:q,v", "quantize": True, "packed": 64, "optimizer": "adamw-8bit"},
        {"freeze": "embedding, block_0", "loss": "pairs", "states": "bf16"},
    ],
)
def test_the_copied_command_and_python_give_the_price(
    ask: Ask, config: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(config).parent)
    step_s = ask("price", **fields)[1]["step_s"]
    command = ask("copy/command", **fields)[1]["files"][""]
    assert main([*command.split()[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_s"] == step_s
    exec(ask("copy/python", **fields)[1]["files"][""], {})
    assert float(capsys.readouterr().out.split()[0]) == step_s


@pytest.mark.parametrize("target", ["torch-csv", "torchtitan", "megatron", "deepspeed", "galvatron"])
def test_what_is_copied_for_a_framework_is_what_export_writes(ask: Ask, config: str, target: str) -> None:
    price = am.price(config, gpus="8xh100", global_batch=16, tp=2, pp=2)
    assert ask(f"copy/{target}")[1]["files"][""] == am.export(price, target).written.text


def test_without_a_pipeline_deepspeed_is_copied_as_the_json_that_its_trainers_take(ask: Ask) -> None:
    copied = json.loads(ask("copy/deepspeed", tp=1, pp=1, zero=2)[1]["files"][""])
    assert (copied["train_batch_size"], copied["zero_optimization"]) == (16, {"stage": 2})


@pytest.mark.parametrize("launcher", ["slurm", "skypilot", "jobset"])
def test_what_is_copied_to_launch_it_is_what_export_writes(ask: Ask, config: str, launcher: str) -> None:
    price = am.price(config, gpus="8xh100", global_batch=16, tp=2, pp=2)
    copied = ask(f"copy/{launcher}")[1]
    written = am.export(price, "megatron", launch=launcher).written
    assert (copied["files"], copied["notes"]) == ({"": written.text}, [*written.notes])


def test_a_script_for_slurm_is_one_that_a_shell_reads(ask: Ask) -> None:
    script = ask("copy/slurm")[1]["files"][""]
    assert "#SBATCH --nodes=1\n" in script
    assert "#SBATCH --gpus-per-node=8\n" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


@pytest.mark.parametrize(
    ("target", "fields", "what"),
    [
        ("no-such", {}, "unknown target 'no-such'"),
        ("command", {"recompute": ["none", "full"]}, "of each stage is no option of the command"),
        ("slurm", {"zero": 3}, "megatron has no ZeRO-3"),
        ("slurm", {"cluster": "p4d-p3dn", "global_batch": 64}, "mixed"),
        ("jax", {}, "a strategy has no words in jax"),
    ],
)
def test_what_cannot_be_copied_is_refused(ask: Ask, target: str, fields: dict[str, Any], what: str) -> None:
    status, refusal = ask(f"copy/{target}", **fields)
    assert status == 422
    assert what in refusal["sentence"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [("copy/torch-csv", {}), ("copy/torchtitan", {}), ("price", {"schedule": "zb-v", "vp": 2})],
)
def test_a_batch_of_too_many_passes_is_refused_by_a_field_of_the_page(ask: Ask, path: str, fields: Any) -> None:
    """The page has no number of micro-batches: two replicas have 200,000 each of these samples."""
    status, refusal = ask(path, global_batch=400_000, **fields)
    assert status == 422
    assert refusal["where"] == "`global_batch`"
    assert "200000 micro-batches" in refusal["sentence"]
    assert "of 2 sample(s) each (dp × micro-batch)" in refusal["sentence"]


def test_models_and_clusters_are_what_one_can_ask_for(client: TestClient) -> None:
    models, clusters = client.get("/api/models").json(), client.get("/api/clusters").json()
    assert {"llama3-8b", "deepseek-v3"} <= {model["name"] for model in models}
    assert "vgg19" not in {model["name"] for model in models}
    assert {"name": "p4d-p3dn", "devices": 32, "kinds": ["a100-40", "v100"]} in clusters["clusters"]
    assert {"torchtitan", "megatron"} <= {*clusters["targets"]}
    assert clusters["copies"] == ["command", "python", "slurm", "skypilot", "jobset"]


def test_the_page_asks_for_nothing_from_elsewhere(client: TestClient) -> None:
    """It works without the internet: no address in any of its files but the names of XML, and where uPlot is from."""
    page = "".join(client.get(f"/{name}").text for name in ("", "app.js", "draw.js", "style.css"))
    assert page.count("http") == page.count("http-equiv") + page.count("http://www.w3.org/2000/svg") == 2
    assert re.findall("http.*", client.get("/uplot/uPlot.iife.min.js").text) == [
        "https://github.com/leeoniya/uPlot (v1.6.32) */"
    ]
    assert "http" not in client.get("/uplot/uPlot.min.css").text


def test_a_host_that_others_reach_has_to_be_allowed() -> None:
    assert ServeRequest(host="::1").host == "::1"
    assert ServeRequest(host="0.0.0.0", allow_remote=True).allow_remote
    with pytest.raises(BadInput, match="without a password"):
        ServeRequest(host="0.0.0.0")


def test_a_port_in_use_and_a_host_that_is_none_are_refused() -> None:
    with listen(ServeRequest(port=0)) as listener, pytest.raises(BadInput, match="cannot be listened on"):
        listen(ServeRequest(port=listener.getsockname()[1]))
    with pytest.raises(BadInput, match="no interface"):
        listen(ServeRequest(host="no-such.invalid", allow_remote=True))
