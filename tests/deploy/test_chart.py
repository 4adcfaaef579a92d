"""The Helm chart, rendered by Helm's own library and checked against the schemas of Kubernetes, KEDA and the Prometheus
operator. Its commands are run in test_deployed.py; no cluster has seen it."""

import re
import tomllib
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject, TriggerAuthentication
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, ServiceMonitor

from broker_config.brokers.topology import tasks_queue
from client_worker.stopping import LAST_SECONDS
from ops.monitoring.files import Places, prometheus_files
from server_worker.run.recipe import Recipe, make_recipe
from tests.deploy.composed import load, mounts_of
from tests.deploy.programs import parse
from tests.deploy.rendered import (
    CHART,
    EXAMPLES,
    NAMESPACE,
    RELEASE,
    Manifest,
    Values,
    example,
    merged,
    of_kind,
    pods,
    render,
)

OLDEST, NEWEST = "1.27", "1.37"
THEIRS = {
    model.__name__: model for model in (ScaledObject, TriggerAuthentication, ServiceMonitor, PodMonitor)
}


def recipe_of(values: Values) -> Recipe:
    return make_recipe(tomllib.loads(values["recipe"]))


@pytest.fixture(scope="module", params=EXAMPLES)
def values(request: pytest.FixtureRequest) -> Values:
    return example(request.param)


@pytest.fixture(scope="module")
def manifests(values: Values) -> list[Manifest]:
    return render(values)


@pytest.fixture(scope="module")
def production() -> list[Manifest]:
    return render(example("production"))


def test_the_chart_passes_helm_lint_strict(values: Values) -> None:
    report = helm_python.lint(CHART, values, strict=True, namespace=NAMESPACE)
    assert report["errors"] == []
    assert [message for message in report["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_knows_every_field(manifests: list[Manifest], version: str) -> None:
    checked = [one for one in manifests if one["kind"] not in THEIRS]
    assert {"ConfigMap", "Service", "StatefulSet", "Deployment"} <= {one["kind"] for one in checked}
    for one in checked:
        kubernetes_validate.validate(one, version, strict=True)


def known_fields(manifest: Manifest) -> Any:
    """Those that the model of the custom resource has: it drops others without an error."""
    return (
        THEIRS[manifest["kind"]]
        .model_validate(manifest)
        .model_dump(mode="json", by_alias=True, exclude_unset=True)
    )


def test_keda_and_the_prometheus_operator_know_every_field(production: list[Manifest]) -> None:
    theirs = [one for one in production if one["kind"] in THEIRS]
    assert {one["kind"] for one in theirs} == set(THEIRS)
    for one in theirs:
        assert known_fields(one) == one
    misspelt = merged(theirs[-1], {"spec": {"selectr": {}}})
    assert known_fields(misspelt) != misspelt


def test_every_argument_is_one_that_the_programs_take(manifests: list[Manifest]) -> None:
    parsed = [
        parse(container["args"])
        for _, pod in pods(manifests)
        for container in pod["containers"]
        if container["name"] in ("server", "worker")
    ]
    assert len(parsed) >= 2
    for options in parsed:
        assert options.recipe is not None
        assert str(options.web) == "0.0.0.0:8265"


def test_recipes_of_examples_are_valid_and_have_the_sites_of_the_values(values: Values) -> None:
    recipe = recipe_of(values)
    assert set(recipe.sites) == set(values["sites"])


def test_overrides_in_arguments_are_settings_of_the_recipe(manifests: list[Manifest], values: Values) -> None:
    for _, pod in pods(manifests):
        for container in pod["containers"]:
            if container["name"] in ("server", "worker"):
                recipe_with(values, parse(container["args"]).overrides)


def recipe_with(values: Values, overrides: list[str]) -> Recipe:
    return make_recipe(tomllib.loads(values["recipe"]), overrides=overrides)


def test_pods_are_as_restricted_as_kubernetes_strictest_profile_wants(manifests: list[Manifest]) -> None:
    for workload, pod in pods(manifests):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            for name in ("startupProbe", "livenessProbe"):
                assert name in container, workload["metadata"]["name"]


def test_a_signal_ends_a_process_that_is_still_loading(manifests: list[Manifest]) -> None:
    """Number 1 of a container ignores signals without a handler; with a shared namespace it is Kubernetes' own."""
    for _, pod in pods(manifests):
        if pod["containers"][0]["name"] in ("server", "worker"):
            assert pod["shareProcessNamespace"] is True


def test_every_mount_has_its_volume_and_none_is_unused(manifests: list[Manifest]) -> None:
    for workload, pod in pods(manifests):
        volumes = {volume["name"] for volume in pod["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
        mounted = [mount for container in pod["containers"] for mount in container["volumeMounts"]]
        assert {mount["name"] for mount in mounted} == volumes
        places = [mount["mountPath"] for mount in mounted]
        assert len(places) == len(set(places))
        # A runtime cannot make the place of a mount within a read-only one.
        within = {mount["mountPath"] for mount in mounted if mount.get("readOnly")}
        assert not [place for place in places for outer in within if place.startswith(f"{outer}/")]


def test_passwords_come_from_secrets_and_from_nowhere_else(manifests: list[Manifest]) -> None:
    assert of_kind(manifests, "Secret") == {}
    for _, pod in pods(manifests):
        for container in pod["containers"]:
            for variable in container.get("env", []):
                assert set(variable["valueFrom"]) == {"secretKeyRef"}
    assert not re.search(r"amqps?://|rediss?://|:[^/\s]+@", yaml.safe_dump(manifests))


def test_names_selectors_and_ports_fit_together(manifests: list[Manifest]) -> None:
    templates = [workload["spec"]["template"] for workload, _ in pods(manifests)]

    def selected(labels: dict[str, str]) -> list[Manifest]:
        return [one for one in templates if labels.items() <= one["metadata"]["labels"].items()]

    for service in of_kind(manifests, "Service").values():
        (template,) = selected(service["spec"]["selector"])
        (container,) = template["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for port in service["spec"]["ports"]:
            assert ports[port["name"]] == port["port"]
    for workload, _ in pods(manifests):
        assert selected(workload["spec"]["selector"]["matchLabels"]) == [workload["spec"]["template"]]
        if workload["kind"] == "StatefulSet":
            assert workload["spec"]["serviceName"] in of_kind(manifests, "Service")
    for kind in ("PodDisruptionBudget", "ServiceMonitor", "PodMonitor"):
        for one in of_kind(manifests, kind).values():
            assert len(selected(one["spec"]["selector"]["matchLabels"])) == 1


@pytest.mark.parametrize("grace", [0, 60, 7200])
def test_a_worker_has_time_for_its_grace_and_for_what_follows(grace: int) -> None:
    rendered = render(merged(example("production"), {"worker": {"graceSeconds": grace}}))
    for workload in of_kind(rendered, "Deployment").values():
        pod = workload["spec"]["template"]["spec"]
        options = parse(pod["containers"][0]["args"])
        assert options.grace == grace
        # The pool of several processes waits a second longer than they do.
        assert pod["terminationGracePeriodSeconds"] >= options.grace + LAST_SECONDS + 1 + 10


def test_keda_counts_the_tasks_of_the_sites_queue(production: list[Manifest]) -> None:
    deployments, scaled = of_kind(production, "Deployment"), of_kind(production, "ScaledObject")
    sites = example("production")["sites"]
    assert set(scaled) == set(deployments) == {f"{RELEASE}-worker-{site}" for site in sites}
    for site, asked in sites.items():
        spec = scaled[f"{RELEASE}-worker-{site}"]["spec"]
        (trigger,) = spec["triggers"]
        assert trigger["type"] == "rabbitmq"
        assert trigger["metadata"] == {
            "protocol": "http",  # over AMQP unacknowledged tasks would not count
            "mode": "QueueLength",
            "queueName": tasks_queue(site),
            "value": str(asked.get("processes", 1)),
            "activationValue": "0",
        }
        assert trigger["authenticationRef"]["name"] in of_kind(production, "TriggerAuthentication")
        assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, asked["replicas"])
        assert spec["cooldownPeriod"] >= recipe_of(example("production")).federation.deadline_seconds
        deployment = deployments[spec["scaleTargetRef"]["name"]]
        assert "replicas" not in deployment["spec"], "each upgrade would undo what KEDA has scaled"
        options = parse(deployment["spec"]["template"]["spec"]["containers"][0]["args"])
        assert (options.site, options.processes) == (site, asked.get("processes", 1))


@pytest.mark.parametrize(("cooldown", "stable"), [(600, 600), (7200, 3600)])
def test_workers_are_not_taken_away_within_a_round(cooldown: int, stable: int) -> None:
    values = merged(example("production"), {"keda": {"cooldownSeconds": cooldown}})
    for scaled in of_kind(render(values), "ScaledObject").values():
        assert scaled["spec"]["cooldownPeriod"] == cooldown
        behavior = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert behavior == {"scaleDown": {"stabilizationWindowSeconds": stable}}


def test_a_site_without_pods_is_asked_where_keda_starts_them_for_tasks() -> None:
    def timeout(values: Values) -> float:
        (_, pod) = next(pair for pair in pods(render(values)) if pair[0]["metadata"]["name"] == "demo-server")
        overrides = parse(pod["containers"][0]["args"]).overrides
        return recipe_with(values, overrides).federation.site_timeout_seconds

    values = example("production")
    assert timeout(values) >= 365 * 24 * 3600
    assert timeout(merged(values, {"keda": {"enabled": False}})) == 60.0


def test_prometheus_finds_pods_by_what_the_monitoring_files_say(manifests: list[Manifest]) -> None:
    config = yaml.safe_load(prometheus_files(Places())["kubernetes.yml"])
    wanted = {
        rule["regex"]
        for job in config["scrape_configs"]
        for rule in job["relabel_configs"]
        if "__meta_kubernetes_pod_label_app_kubernetes_io_component" in rule.get("source_labels", [])
    }
    assert wanted == {"fedil;server", "fedil;worker", "rabbitmq"}
    for workload, pod in pods(manifests):
        about = workload["spec"]["template"]["metadata"]
        component = about["labels"]["app.kubernetes.io/component"]
        if component == "redis":
            continue
        assert {f"{about['labels']['app.kubernetes.io/part-of']};{component}", component} & wanted
        ports = [port["containerPort"] for port in pod["containers"][0]["ports"]]
        assert int(about["annotations"]["prometheus.io/port"]) in ports
        assert (component == "worker") == ("fedil.site" in about["labels"])


def test_the_operators_monitors_have_the_jobs_and_bounds_of_the_monitoring_files(
    production: list[Manifest],
) -> None:
    jobs = {
        job["job_name"]: job
        for job in yaml.safe_load(prometheus_files(Places())["kubernetes.yml"])["scrape_configs"]
    }
    (server,) = of_kind(production, "ServiceMonitor").values()
    (endpoint,) = server["spec"]["endpoints"]
    assert endpoint["relabelings"][0]["replacement"] in jobs
    monitors = of_kind(production, "PodMonitor")
    assert len(monitors["demo-worker-south"]["spec"]["podMetricsEndpoints"]) == 4
    ours = jobs["fedil-worker"]
    for monitor in monitors.values():
        spec = monitor["spec"]
        assert spec["sampleLimit"] == ours["sample_limit"]
        assert spec["labelValueLengthLimit"] == ours["label_value_length_limit"]
        assert spec["bodySizeLimit"] == ours["body_size_limit"]
        for endpoint in spec["podMetricsEndpoints"]:
            assert endpoint["honorTimestamps"] is ours["honor_timestamps"]
            keep, drop = endpoint["metricRelabelings"]
            same = [{"source_labels": keep["sourceLabels"], "regex": keep["regex"], "action": "keep"}]
            assert [*same, drop] == ours["metric_relabel_configs"]


def test_two_servers_share_one_volume_and_a_drain_takes_one() -> None:
    alone, paired = render(example("minimal")), render(example("production"))
    assert of_kind(alone, "StatefulSet")["demo-server"]["spec"]["replicas"] == 1
    assert "demo-server" not in of_kind(alone, "PodDisruptionBudget"), "it would hold up every drain"
    server = of_kind(paired, "StatefulSet")["demo-server"]["spec"]
    assert server["replicas"] == 2
    assert "volumeClaimTemplates" not in server
    assert parse(server["template"]["spec"]["containers"][0]["args"]).standby
    assert of_kind(paired, "PersistentVolumeClaim")["demo-server"]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert of_kind(paired, "PodDisruptionBudget")["demo-server"]["spec"]["maxUnavailable"] == 1


def test_a_volume_of_ones_own_replaces_the_charts(values: Values) -> None:
    rendered = render(merged(values, {"server": {"volume": {"existingClaim": "mine"}}}))
    assert of_kind(rendered, "PersistentVolumeClaim") == {}
    volumes = of_kind(rendered, "StatefulSet")["demo-server"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "run", "persistentVolumeClaim": {"claimName": "mine"}} in volumes


def test_images_and_their_pull_secrets_are_those_of_the_values(production: list[Manifest]) -> None:
    for _, pod in pods(production):
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert [container["image"] for container in pod["containers"]] == [
            "registry.example/fedil:0.1.0-cu130"
        ]
    untagged = of_kind(render(example("minimal")), "StatefulSet")["demo-server"]
    assert untagged["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.example/fedil:0.1.0"


def test_gpus_and_nodes_are_those_of_the_site(production: list[Manifest]) -> None:
    north = of_kind(production, "Deployment")["demo-worker-north"]["spec"]["template"]["spec"]
    assert north["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert north["nodeSelector"] == {"pool": "gpu-north"}
    assert north["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    south = of_kind(production, "Deployment")["demo-worker-south"]["spec"]["template"]["spec"]
    assert south["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert "nodeSelector" not in south
    (shards,) = [volume for volume in south["volumes"] if volume["name"] == "shards"]
    assert shards["persistentVolumeClaim"]["claimName"] == "south-shards"


def test_bundled_brokers_start_as_those_of_compose_do() -> None:
    composed = load({"FEDIL_USER": "1:1"})["services"]
    for broker in ("rabbitmq", "redis"):
        pod = of_kind(render(example("evaluation")), "StatefulSet")[f"demo-{broker}"]["spec"]["template"][
            "spec"
        ]
        (container,) = pod["containers"]
        assert container["image"] == composed[broker]["image"]
        theirs = [
            mount.target for mount in mounts_of(composed[broker], CHART) if mount.target != "/etc/fedil/tls"
        ]
        ours = [mount["mountPath"] for mount in container["volumeMounts"]]
        if broker == "redis":
            assert container["command"] + container["args"] == composed["redis"]["command"]
            assert f"{pod['securityContext']['runAsUser']}:999" == composed["redis"]["user"]
            # The whole Secret in one place
            theirs = sorted({place if place == "/data" else "/etc/fedil/brokers" for place in theirs})
        assert set(theirs) <= set(ours)
        (files,) = [volume for volume in pod["volumes"] if volume["name"] == "files"]
        assert files["secret"]["secretName"] == "demo-brokers"


def test_policies_open_what_processes_use_and_nothing_else() -> None:
    (policy,) = of_kind(render(example("production")), "NetworkPolicy").values()
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    dns, brokers = policy["spec"]["egress"]
    assert {port["port"] for port in dns["ports"]} == {53}
    assert brokers == {
        "to": [{"ipBlock": {"cidr": "10.2.0.0/24"}}],
        "ports": [{"port": 5671}, {"port": 6379}],
    }
    (metrics,) = policy["spec"]["ingress"]
    assert metrics["ports"] == [{"port": 8265, "endPort": 8265 + 64}]
    bundled = of_kind(
        render(merged(example("evaluation"), {"keda": {"enabled": True, "credentialsSecret": "k"}})),
        "NetworkPolicy",
    )
    reached = [
        [port["port"] for port in rule["ports"]] for rule in bundled["demo-brokers"]["spec"]["ingress"]
    ]
    assert reached == [[5672, 6379], [15692], [15672]]
    assert "egress" not in bundled["demo-brokers"]["spec"], "brokers open no connections"
    without = of_kind(render(example("evaluation")), "NetworkPolicy")["demo-brokers"]["spec"]["ingress"]
    assert [[port["port"] for port in rule["ports"]] for rule in without] == [[5672, 6379], [15692]]
