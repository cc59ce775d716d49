"""Admission reviews in the API server's form (kubernetes.io, Dynamic Admission Control), and the objects that result.

The pods are those of the schedulers' documentation, listed in docs/kubernetes.md. Results are validated with Kubernetes'
own JSON schemas.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml

from vramcast.cluster.answer import Answer
from vramcast.cluster.kubernetes import review as reviews
from vramcast.cluster.kubernetes.gpu_requests import FORMATS, format_of
from vramcast.cluster.kubernetes.mutation import Mode, mutate, validate
from vramcast.core.errors import NoAnswer, UsageError
from vramcast.core.units import GIB, MIB

CONTRIB = Path(__file__).parents[3] / "contrib" / "kubernetes"
NAMED = {
    "vramcast.dev/target": "torchvision:resnet50",
    "vramcast.dev/batch": "32x3x224x224",
    "vramcast.dev/labels": "32:int64<1000",
    "vramcast.dev/device": "a100-40gb",
}
GPU = {"limits": {"nvidia.com/gpu": "1"}}
FITS = Answer("a" * 64, True, 4 * GIB + 1, 3 * GIB, 40 * GIB)
LARGE = Answer("b" * 64, False, 40 * GIB, 60 * GIB, 40 * GIB)


def pod(annotations: dict[str, str] | None = None, resources: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "train", "image": "pytorch", "command": ["torchrun", "train.py"]}
    if resources is not None:
        container["resources"] = copy.deepcopy(resources)  # type: ignore[assignment]
    metadata: dict[str, Any] = {"name": "job", "namespace": "team"}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def job(template: dict[str, Any]) -> dict[str, Any]:
    inner = {"metadata": {"annotations": template["metadata"].get("annotations", {})}, "spec": template["spec"]}
    inner["spec"]["restartPolicy"] = "Never"
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": {"template": inner}}


def review_of(about: dict[str, Any]) -> reviews.AdmissionRequest:
    """Return an AdmissionReview in the API server's form, parsed."""
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": about["kind"]},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "job", "namespace": "team", "operation": "CREATE",
        "userInfo": {"username": "ann", "groups": ["system:authenticated"]},
        "object": about, "oldObject": None, "dryRun": False,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
    }  # fmt: skip
    return reviews.read(
        json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()
    )


def decided(decide: Any, about: dict[str, Any], answer: Answer | Exception, mode: Mode) -> tuple[dict[str, Any], list[Any]]:
    asked = []

    async def ask(question: dict[str, Any]) -> Answer:
        asked.append(question)
        if isinstance(answer, Exception):
            raise answer
        return answer

    found = asyncio.run(decide(review_of(about), ask, mode))
    assert found["apiVersion"] == "admission.k8s.io/v1"
    assert found["kind"] == "AdmissionReview"
    assert found["response"]["uid"] == "705ab4f5-6393-11e8-b7cc-42010a800002"
    return found["response"], asked


def mutated(
    about: dict[str, Any], answer: Answer | Exception = FITS, mode: Mode = "fill"
) -> tuple[dict[str, Any], list[str], list[Any]]:
    """Return the object as the API server would then store it, valid by Kubernetes' schema, and the warnings."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    response, asked = decided(mutate, about, answer, mode)
    assert response["allowed"] is True
    patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    assert bool(patch) == (response.get("patchType") == "JSONPatch")
    after = jsonpatch.apply_patch(about, patch)
    kubernetes_validate.validate(after, "1.30", strict=True)
    return after, response.get("warnings", []), asked


def limits(after: dict[str, Any]) -> dict[str, str]:
    return after["spec"]["containers"][0].get("resources", {}).get("limits", {})


def test_kai_gets_annotation_without_cards() -> None:
    after, warnings, asked = mutated(pod(NAMED, GPU, schedulerName="kai-scheduler"))
    assert after["metadata"]["annotations"]["gpu-memory"] == "4097"
    assert limits(after) == {}
    assert (after["metadata"]["annotations"]["vramcast.dev/process-mib"], warnings) == ("3072", [])
    assert asked == [
        {"target": "torchvision:resnet50", "batch": ["32x3x224x224"], "labels": "32:int64<1000", "device": "a100-40gb"}
    ]


def test_hami_gets_gpumem_and_cards() -> None:
    after, _, _ = mutated(pod(NAMED, {"limits": {"nvidia.com/gpu": "2", "cpu": "4"}}, schedulerName="hami-scheduler"))
    assert limits(after) == {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4097", "cpu": "4"}


def test_volcano_gets_its_own_resource_names() -> None:
    resources = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1", "memory": "1Gi"}}
    after, _, _ = mutated(pod(NAMED, resources, schedulerName="volcano"))
    assert limits(after) == {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "4097"}
    assert after["spec"]["containers"][0]["resources"]["requests"] == {"memory": "1Gi"}


def test_fills_job_template_for_kueue() -> None:
    annotations = {**NAMED, "vramcast.dev/format": "hami"}
    after, _, _ = mutated(job(pod(annotations, GPU)))
    container = after["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpumem"] == "4097"


def test_checks_every_template_of_pytorchjob() -> None:
    template = {"spec": pod(None, GPU, schedulerName="volcano")["spec"]}
    replicas = {name: {"replicas": 1, "template": copy.deepcopy(template)} for name in ("Master", "Worker")}
    whole = {
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "x", "annotations": NAMED},
        "spec": {"pytorchReplicaSpecs": replicas},
    }  # fmt: skip
    response, asked = decided(mutate, whole, FITS, "fill")
    after = jsonpatch.apply_patch(whole, json.loads(base64.b64decode(response["patch"])))
    for name in ("Master", "Worker"):
        container = after["spec"]["pytorchReplicaSpecs"][name]["template"]["spec"]["containers"][0]
        assert container["resources"]["limits"]["volcano.sh/vgpu-memory"] == "4097"
    assert len(asked) == 2


def test_keeps_pod_from_filled_template() -> None:
    first, _, _ = mutated(pod({**NAMED, "vramcast.dev/format": "hami"}, GPU))
    again, warnings, _ = mutated(first)
    assert (again["spec"], warnings) == (first["spec"], [])


def test_watch_mode_records_request() -> None:
    before = pod(NAMED, GPU, schedulerName="kai-scheduler")
    after, warnings, _ = mutated(before, mode="watch")
    assert after["spec"] == before["spec"]
    assert after["metadata"]["annotations"]["vramcast.dev/would-request-mib"] == "4097"
    assert (after["metadata"]["annotations"]["vramcast.dev/estimate-id"], warnings) == ("a" * 64, [])


@pytest.mark.parametrize(
    ("asked_mib", "mode", "warned", "allowed"),
    [
        (5000, "fill", "", True),
        (3500, "enforce", "may be too little", True),
        (1000, "fill", "", True),
        (1000, "enforce", "", False),
    ],
)
def test_keeps_and_checks_own_request(asked_mib: int, mode: Mode, warned: str, allowed: bool) -> None:
    about = pod(NAMED, {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(asked_mib)}})
    after, warnings, _ = mutated(about, mode=mode)
    assert limits(after) == limits(about)
    assert warned in "".join(warnings)
    assert bool(warnings) == (asked_mib < FITS.request_bytes // MIB)
    response, _ = decided(validate, about, FITS, mode)
    assert response["allowed"] is allowed
    if not allowed:
        assert response["status"]["code"] == 403
        assert "request 4097 MiB" in response["status"]["message"]


@pytest.mark.parametrize(
    ("quantity", "size_mib"),
    [
        ("3000", 3000),
        ("3k", 3000),
        ("1Ki", 1024),
        ("4Mi", 4 << 20),
        ("3e3", 3000),
        ("2999500m", 3000),
        (3000, 3000),
        ("x", None),
    ],
)
def test_reads_every_form_of_quantity(quantity: str, size_mib: int | None) -> None:
    asked = pod(None, {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": quantity}})
    found = FORMATS["hami"].request_bytes(asked, asked["spec"]["containers"][0])
    assert found == (size_mib and size_mib * MIB)
    assert format_of(asked, "") is (FORMATS["hami"] if size_mib else None)


@pytest.mark.parametrize("scheduler", ["kai-scheduler", "hami-scheduler", "volcano", None])
@pytest.mark.parametrize(
    ("annotations", "resources"),
    [
        ({"gpu-fraction": "0.5"}, {}), ({"gpu-memory": "20k"}, {}), ({"gpu-memory": "20000"}, {}), ({"gpu-memory": ""}, {}),
        ({}, {"nvidia.com/gpumem": "20k"}), ({}, {"nvidia.com/gpumem": "0"}), ({}, {"nvidia.com/gpumem-percentage": "50"}),
        ({}, {"volcano.sh/vgpu-memory": "10k"}), ({}, {"volcano.sh/vgpu-memory-percentage": "50"}),
        ({}, {"nvidia.com/mig-3g.20gb": "1"}), ({}, {"nvidia.com/gpu.shared": "1"}), ({"gpu-fraction-num-devices": "2"}, {}),
    ],
)  # fmt: skip
def test_keeps_partial_requests_in_any_format(
    annotations: dict[str, str], resources: dict[str, str], scheduler: str | None
) -> None:
    more = {} if scheduler is None else {"schedulerName": scheduler}
    about = pod({**NAMED, **annotations}, {"limits": resources}, **more)
    after, _, _ = mutated(about)
    own = {name: text for name, text in after["metadata"]["annotations"].items() if not name.startswith("vramcast.dev/")}
    assert (after["spec"], own) == (about["spec"], annotations)


def test_keeps_partial_request_of_other_container() -> None:
    about = pod(NAMED, GPU, schedulerName="hami-scheduler")
    mig = {
        "name": "first",
        "image": "x",
        "resources": {"requests": {"nvidia.com/mig-1g.5gb": "1"}, "limits": {"nvidia.com/mig-1g.5gb": "1"}},
    }
    for place in ("initContainers", "containers"):
        other = copy.deepcopy(about)
        other["spec"].setdefault(place, []).append(mig)
        after, warnings, _ = mutated(other)
        assert after["spec"] == other["spec"]
        assert "nvidia.com/mig-1g.5gb and stays unchanged" in warnings[0]


def test_compares_requests_with_suffix() -> None:
    for asked, allowed in (("1k", False), ("20k", True), ("3Ki", True)):
        response, _ = decided(validate, pod(NAMED, {"limits": {"nvidia.com/gpumem": asked}}), FITS, "enforce")
        assert response["allowed"] is allowed


def test_enforce_mode_rejects_too_large_pod() -> None:
    about = pod(NAMED, GPU, schedulerName="kai-scheduler")
    after, warnings, _ = mutated(about, LARGE)
    assert after["spec"] == about["spec"]
    assert "needs 60.00 GiB, but the card has 40.00 GiB" in warnings[0]
    assert decided(validate, about, LARGE, "fill")[0]["allowed"] is True
    assert decided(validate, about, LARGE, "enforce")[0]["allowed"] is False
    assert decided(validate, about, FITS, "enforce")[0]["allowed"] is True


@pytest.mark.parametrize("error", [NoAnswer("it is not ready yet"), UsageError("batch is wrong")])
@pytest.mark.parametrize("decide", [mutate, validate])
def test_admits_with_warning_without_answer(decide: Any, error: Exception) -> None:
    response, _ = decided(decide, pod(NAMED, GPU, schedulerName="volcano"), error, "enforce")
    assert (response["allowed"], "patch" in response) == (True, False)
    assert str(error) in response["warnings"][0]


def test_ignores_pods_without_annotations() -> None:
    for about in (pod(), pod({}, GPU), pod({"vramcast.dev/batch": "1x2"}, GPU), job(pod(None, GPU))):
        for decide in (mutate, validate):
            response, asked = decided(decide, about, FITS, "enforce")
            assert response == {"uid": response["uid"], "allowed": True}
            assert asked == []


@pytest.mark.parametrize(
    ("changes", "spec", "why"),
    [
        ({"vramcast.dev/device": None}, {}, "no card is named"),
        ({"vramcast.dev/container": "other"}, {"schedulerName": "volcano"}, "no container 'other'"),
        ({}, {}, "one of kai, hami, volcano"),
        ({"vramcast.dev/format": "slurm"}, {}, "one of kai, hami, volcano"),
        ({"vramcast.dev/target": "x" * 20_000}, {}, "at most 10000"),
    ],
)
def test_warns_about_missing_facts(changes: dict[str, str | None], spec: dict[str, Any], why: str) -> None:
    annotations = {name: text for name, text in {**NAMED, **changes}.items() if text is not None}
    after, warnings, _ = mutated(pod(annotations, GPU, **spec))
    assert why in warnings[0]
    assert limits(after) == GPU["limits"]


def test_takes_card_from_node_selector() -> None:
    annotations = {name: text for name, text in NAMED.items() if not name.endswith("device")}
    selector = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-SHARED"}
    _, _, asked = mutated(pod(annotations, GPU, schedulerName="volcano", nodeSelector=selector))
    assert asked[0]["device"] == "NVIDIA A100 SXM4 40GB"
    _, _, asked = mutated(pod({**NAMED, "vramcast.dev/world-size": "8", "vramcast.dev/checkpointing": "true"}, GPU))
    assert (asked[0]["world_size"], asked[0]["checkpointing"]) == (8, True)


def test_keeps_several_cards_for_kai() -> None:
    about = pod(NAMED, {"limits": {"nvidia.com/gpu": "4"}}, schedulerName="kai-scheduler")
    after, warnings, _ = mutated(about)
    assert after["spec"] == about["spec"]
    assert "4 whole cards" in warnings[0]


def _body(about: bytes) -> bytes:
    begin = b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "1", "object": {"x": '
    return begin + about + b"}}}"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"1", b'{"request": 1}', b"[" * 100_000, b"\xff",
        _body(b'{"a": ' * 900 + b"1" + b"}" * 900), _body(b"9" * 5000), _body(b'{"spec": [' + b"9" * 5000 + b"]}"),
        b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "1", "object": {}}}',
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "1", "object": null}}',
    ],
)  # fmt: skip
def test_rejects_other_bodies(body: bytes) -> None:
    with pytest.raises(UsageError, match="AdmissionReview"):
        reviews.read(body)


@pytest.mark.parametrize(
    "about",
    [
        {"kind": "Pod", "spec": None}, {"kind": "Job", "spec": {"template": 5}},
        {"kind": "Pod", "metadata": {"annotations": NAMED}, "spec": {}},
        {"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": []}},
        {"kind": "Pod", "metadata": {"annotations": NAMED}, "spec": {"schedulerName": "volcano", "containers": [7]}},
        {"kind": "Pod", "metadata": {"annotations": [1]}, "spec": {"containers": [{"resources": []}]}},
        {"kind": "Pod", "metadata": 3, "spec": {"containers": {}}},
        {"kind": "Secret", "data": {}},
    ],
)  # fmt: skip
def test_admits_odd_objects(about: dict[str, Any]) -> None:
    for decide in (mutate, validate):
        response, _ = decided(decide, about, FITS, "enforce")
        assert response["allowed"] is True


# -- manifests ------------------------------------------------------------------------------------------------------


def manifests() -> list[dict[str, Any]]:
    names = yaml.safe_load((CONTRIB / "kustomization.yaml").read_text())["resources"]
    return [one for name in names for one in yaml.safe_load_all((CONTRIB / name).read_text())]


def test_manifests_are_valid() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kinds = []
    for one in manifests():
        if "cert-manager" not in one["apiVersion"]:  # Kubernetes itself has no schema for it
            kubernetes_validate.validate(one, "1.30", strict=True)
        kinds.append(one["kind"])
    assert {"Deployment", "Service", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "Certificate"} <= set(
        kinds
    )


def test_webhooks_fail_open_and_call_known_routes() -> None:
    service = pytest.importorskip("vramcast.cluster.service.app")
    webhooks = [hook for one in manifests() for hook in one.get("webhooks", ())]
    assert len(webhooks) == 5
    for hook in webhooks:
        mode, verb = hook["clientConfig"]["service"]["path"].removeprefix("/admission/").split("/")
        assert hook["name"].startswith(f"{mode}.{verb}.")
        assert hook["namespaceSelector"]["matchLabels"] == {"vramcast.dev/mode": mode}
        assert hook["failurePolicy"] == "Ignore"
        assert hook["timeoutSeconds"] > service._REVIEW_S
