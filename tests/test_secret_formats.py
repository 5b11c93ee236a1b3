"""Secrets that their form gives away, and names of programs that must stay as they are."""

from __future__ import annotations

import json
import pickle
import random
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.capture.masking import mask_in_file
from foretrace.capture.secret_shapes import secrets_among
from foretrace.secret_formats import (
    LEFT_OUT,
    secret_places,
    without_known_secrets,
    without_known_secrets_in,
)
from tests.capture.planted import ISSUED, PEM

# These have no form of their own: they are known by the name that they stand under, or by being random.
FORMLESS = ("aws key", "discord", "wandb", "uuid", "azure")
KNOWN = {kind: secret for kind, secret in ISSUED.items() if kind not in FORMLESS} | {"private key": PEM}


@pytest.mark.parametrize("kind", KNOWN)
def test_known_formats_are_masked_within_a_name(kind: str) -> None:
    for around in (
        "{}",
        "upload {} now",
        "region_{}",
        "step[{}]",
        "https://host/?x={}&y=1",
        "'{}'",
        "key={};",
    ):
        name = around.format(KNOWN[kind])
        masked = without_known_secrets(name)
        assert KNOWN[kind] not in masked, around
        assert LEFT_OUT in masked
        assert without_known_secrets(masked) == masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("connect postgres://admin:pw@db:5432/x", "connect postgres://<left out>@db:5432/x"),
        ("http_proxy=http://user:p@ss@proxy:3128", "http_proxy=http://<left out>@proxy:3128"),
        ("redis://:pw@h/0", "redis://<left out>@h/0"),
        ("mongodb+srv://u:p/w@h", "mongodb+srv://<left out>@h"),
        ("https://tok@github.com/o/r", "https://<left out>@github.com/o/r"),
        ("Server=x;Password=hunter2;Db=y", "Server=x;Password=<left out>;Db=y"),
        ("AccountKey=abc==;Suffix=core", "AccountKey=<left out>;Suffix=core"),
        ("curl -H 'Authorization: Basic dXNlcjpwdw=='", "curl -H 'Authorization: Basic <left out>'"),
        ("authorization: Bearer abc", "authorization: Bearer <left out>"),
        ("train.py --api-key hunter2 --lr 1", "train.py --api-key <left out> --lr 1"),
        ("train.py --db-password=hunter2", "train.py --db-password=<left out>"),
        ('{"client_secret": "hunter2", "lr": 1}', '{"client_secret": "<left out>", "lr": 1}'),
        ("AWS_SECRET_ACCESS_KEY=abc", "AWS_SECRET_ACCESS_KEY=<left out>"),
        ("password: hunter2", "password: <left out>"),
    ],
)
def test_values_where_a_secret_always_stands(text: str, masked: str) -> None:
    assert without_known_secrets(text) == masked


# What programs, compilers and profilers name things: none of it may change.
NAMES = """
HfArgumentParser
sk_learn_step
sk-learn-preprocessing-pipeline-standard-scaler
hf_DistributedDataParallelCommunicationHook
hf_T5EncoderModelWithProjection4bit8bitQ4K
TokenEmbedding
UNet2DConditionModel
Qwen3OmniMoeThinkerForConditionalGeneration
nn.Module: SecretGate_0
nn.Module: PasswordEncoder_0
a_program:SecretModel.forward
SecretModel:forward
ns::secret::kernel<int>
secrets.py(12): token_hex
/usr/lib/python3.11/secrets.py(3): secret
auth.py(3): check_password
forward(password)
api_key
task-abcdefghijklmnopqrstuvwxyz0123
AsiaPacificModel
ASIA_dataset_loader
xoxo
gsk_layer_norm_forward_backward_fused_kernel_for_everything
npm_install
eyJson.loads_of_things
SG.forward.backward
Basic ResNet_18 Token embedding_1234567890123456
step[token=3] cache_key=abc sort_key: name
GET http://host:8080/a?mail=a@b.c
src/a@b/model.py(3): forward
s3://bucket/key@v1
triton_red_fused__to_copy_add_mul_0d1d2d3d4d5de
CompiledFxGraph fgpfrh5pqz3zdj2wl7vqzmtjzd5fmw5uhbdm6bzqhkc4yxcwnpvz
Torch-Compiled Region: 0/0
_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_
void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(cutlass_80::Params)
Cijk_Ailk_Bljk_SB_MT128x128x16_SN_1LDSB0_APM1_AF0EM1_AF1EM1_AMAS3
sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas
e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
GPU-4f3b1c2d-1111-2222-3333-444455556666
""".strip().splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_names_of_programs_stay(name: str) -> None:
    assert without_known_secrets(name) == name


def test_tokens_of_letters_alone_are_told_from_words() -> None:
    source = random.Random(7)
    tokens = ["hf_" + "".join(source.choices(string.ascii_letters, k=34)) for _ in range(1_000)]
    assert sum(without_known_secrets(token) == token for token in tokens) <= 2


def test_a_field_whose_name_promises_a_secret() -> None:
    facts = {"env": {"DB_PASSWORD": "hunter2", "HF_TOKEN": "x", "PAD_TOKEN": "y", "LR": "1"}, "tokens": 5}
    assert without_known_secrets_in(facts) == {
        "env": {"DB_PASSWORD": LEFT_OUT, "HF_TOKEN": LEFT_OUT, "PAD_TOKEN": "y", "LR": "1"},
        "tokens": 5,
    }


@given(st.text(max_size=200))
def test_places_are_in_order_and_masking_again_changes_nothing(text: str) -> None:
    places = secret_places(text)
    assert places == sorted(places)
    assert all(0 <= start < end <= len(text) for start, end in places)
    once = without_known_secrets(text)
    assert without_known_secrets(once) == once


@pytest.mark.parametrize(
    "text",
    ["a" * 50_000, "password=" * 6_000, "://x:" * 10_000, "eyJ." * 12_000, "Bearer " * 8_000, "-----BEGIN PRIVATE KEY-----" * 900,
     "--api-key " * 5_000, "a-" * 25_000 + "secret"],
    ids=lambda text: text[:8],
)  # fmt: skip
def test_long_text_takes_no_longer_than_its_length(text: str) -> None:
    without_known_secrets(text)


def event(name: str, kind: str = "user_annotation") -> dict[str, object]:
    return {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1, "ts": 1, "dur": 2}


@pytest.mark.parametrize("kind", KNOWN)
def test_secrets_in_the_names_of_regions_are_masked_in_the_file(kind: str, tmp_path: Path) -> None:
    """Though nothing in the environment or on the command line says that they are secrets."""
    path = tmp_path / "light.json"
    kept = [event(name, "cpu_op") for name in NAMES]
    path.write_text(json.dumps({"traceEvents": [*kept, event(f"upload {KNOWN[kind]} now"), *kept]}))
    size = path.stat().st_size
    assert mask_in_file(path, []) == 1
    assert path.stat().st_size == size
    events = json.loads(path.read_text())["traceEvents"]
    assert [each["name"] for each in events if each["cat"] == "cpu_op"] == NAMES * 2
    (masked,) = (each["name"] for each in events if each["cat"] != "cpu_op")
    assert masked.startswith("upload ***")
    assert masked.endswith("*** now")


def test_values_in_the_names_of_regions_are_masked_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "light.json"
    path.write_text(
        json.dumps({"traceEvents": [event("login password=hunter2"), event("--api-key hunter2 x")]})
    )
    assert mask_in_file(path, []) == 2
    names = [each["name"] for each in json.loads(path.read_text())["traceEvents"]]
    assert names == ["login password=*******", "--api-key ******* x"]


def test_a_text_that_a_file_repeats_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looked: list[str] = []

    def places(text: str) -> list[Any]:
        looked.append(text)
        return []

    monkeypatch.setattr("foretrace.capture.masking.secret_places", places)
    path = tmp_path / "light.json"
    path.write_text(json.dumps([event("x://yyyyyyy")] * 1_000))
    assert mask_in_file(path, []) == 0
    assert looked.count("x://yyyyyyy") == 1


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")], ids=["spaced", "compact"])
def test_a_secret_anywhere_in_a_text_of_json_is_masked(separators: tuple[str, str], tmp_path: Path) -> None:
    """In a frame's path, in an argument, first and later in a list, behind an escaped quote."""
    token = ISSUED["gitlab"]
    texts = [f"/data/{token}/train.py(3): f", token, f'say "{token}"', f"é {token} 日本"]
    path = tmp_path / "rich.json"
    document = {"name": texts[0], "args": {"Concrete Inputs": texts}, "size": 12345678}
    path.write_text(json.dumps(document, separators=separators), encoding="utf-8")
    assert mask_in_file(path, []) == 5
    stars = json.loads(json.dumps(document, ensure_ascii=False).replace(token, "*" * len(token)))
    assert json.loads(path.read_text(encoding="utf-8")) == stars


def test_the_password_inside_an_address_is_a_secret_of_the_environment() -> None:
    environ = {
        "DATABASE_URL": "postgres://admin:correct-horse-9@db/x",
        "http_proxy": "http://user:pw@proxy:3128",
        "PLAIN": "http://host:8080/a",
    }
    assert secrets_among(environ) == ["admin:correct-horse-9", "correct-horse-9"]
    arguments = ["train.py", "--url", "https://me:swordfish-77@host/x"]
    assert secrets_among({}, arguments) == ["me:swordfish-77", "swordfish-77"]


def test_letters_of_other_languages_beside_a_secret_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "light.json"
    name = f"é{ISSUED['github']}é {ISSUED['gitlab']}日本"
    path.write_text(json.dumps({"traceEvents": [event(name)]}, ensure_ascii=False), encoding="utf-8")
    assert mask_in_file(path, []) == 2
    (masked,) = (each["name"] for each in json.loads(path.read_text(encoding="utf-8"))["traceEvents"])
    assert masked.replace("*", "") == "éé 日本"


def test_only_the_texts_of_a_pickle_are_masked(tmp_path: Path) -> None:
    path = tmp_path / "memory.pickle"
    token, long = ISSUED["github"], "frame " * 100
    others = ["x://a:b", b"\x00" * 50, "@host"]
    snapshot: dict[Any, Any] = {"frames": [*others, f"push {token}", f"{long}{token}"], 5: 2**40}
    path.write_bytes(pickle.dumps(snapshot))
    assert mask_in_file(path, []) == 2
    stars = "*" * len(token)
    masked = {**snapshot, "frames": [*others, f"push {stars}", f"{long}{stars}"]}
    assert pickle.loads(path.read_bytes()) == masked
    assert mask_in_file(path, ["push ****"]) == 1
