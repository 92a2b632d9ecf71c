"""What the operator adds to the pure renderers: fresh secrets, its own image, and who its own pods are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tenure.cluster.calls import Companion
from tenure.cluster.server_ports import NewSecret, SecretObject
from tenure.model.control_server import ControlServer
from tenure.model.masked import Masked
from tenure.operator.servers.certificate import fresh_identity, fresh_nonce, make_certificate
from tenure.operator.servers.secrets import Custody
from tenure.plan.servers import names
from tenure.plan.servers.bootstrap import PORT, bootstrap_data, read_bootstrap
from tenure.plan.servers.pod import render_server_pod
from tenure.plan.servers.policies import OperatorPods, network_policy, volume_claim

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rendering:
    """``image`` is the operator's own, for servers whose spec names none; ``operator`` None: it runs outside of the
    cluster, and no policy could let it in."""

    image: str
    operator: OperatorPods | None = None

    def pod(self, server: ControlServer, ordinal: int, vacancy: str) -> Json:
        """The server's pod."""
        return render_server_pod(server, ordinal=ordinal, vacancy=vacancy, default_image=self.image)

    def companions(self, server: ControlServer) -> Iterator[tuple[Companion, Json]]:
        """What has to be there before the pod is."""
        claim = volume_claim(server)
        if claim is not None:
            yield Companion.CLAIM, claim
        if self.operator is not None:
            yield Companion.NETWORK_POLICY, network_policy(server, self.operator)


def bootstrap_secret(server: ControlServer, ordinal: int, vacancy: str, now: datetime) -> NewSecret:
    """A bootstrap Secret with a nonce, a key and an identity that nobody ever had."""
    identity = fresh_identity()
    made = make_certificate(identity, now)
    data = bootstrap_data(
        server,
        identity=identity,
        vacancy=vacancy,
        nonce=fresh_nonce(),
        certificate=made.certificate,
        key=made.key,
    )
    name = names.bootstrap_name(names.pod_name(server, ordinal))
    return NewSecret(name, names.secret_labels(server), names.owner(server), data)


def blank_custody(bootstrap: SecretObject, adopted_by: str) -> tuple[Custody, Masked] | None:
    """What is known of a server before the handshake, and its nonce; None: the Secret is not whole."""
    found = read_bootstrap(bootstrap.data)
    if found is None:
        return None
    blank = Custody(
        identity=found.identity,
        credential=Masked(""),
        rotation_id=0,
        adopted_by=adopted_by,
        certificate=found.certificate,
        home_dir=found.home_dir,
        port=PORT,
    )
    return blank, found.nonce


def vacancy_of(data: Mapping[str, Masked]) -> str:
    """``Record.vacancy`` when a bootstrap Secret was made. One that is not whole is of no vacancy."""
    found = read_bootstrap(data)
    return "-" if found is None else found.vacancy
