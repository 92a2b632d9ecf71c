"""Without Kubernetes: the backend owns its control server itself, and hands it over to itself."""

import asyncio
import logging
import uuid
from pathlib import Path

from tenure.backend.errors import Final, FinalError
from tenure.backend.link import cancelled, delays
from tenure.model.adoption import AdoptionOutcome, AdoptionReason
from tenure.model.masked import Masked
from tenure.ownership.adoption import Adopter, Adoption
from tenure.ownership.client import ControlClient
from tenure.ownership.endpoint import Endpoint, ReadBudget
from tenure.ownership.errors import ControlError, Doubt, ForeignServer, NotAccepted
from tenure.ownership.files import FileCredentialStore
from tenure.ownership.holding import Holding, StoreFailed
from tenure.protocol.handover import HandOver

log = logging.getLogger("tenure.backend")

FINISH = 5.0
"""Seconds that a closing owner waits for an adoption in flight."""


class LocalOwner:
    """A hand-over source that takes ownership: by the bootstrap nonce when the control server is new, and by
    adopting it when this program has been started again.

    ``url`` and ``home`` are the server's, letter by letter (``home`` is a part of every proof); ``nonce_file``
    is the file that the server was started with; it may be gone once a server was taken. ``state`` is the file
    in which the credential is kept, in a directory of ours; by default beside the server's home. One process
    at a time: a second one waits until the first has ended. Use it as the source of one ``Backend``.
    """

    sole = True

    def __init__(
        self,
        url: str,
        *,
        home: Path | str,
        nonce_file: Path | str,
        state: Path | str | None = None,
        server_name: str = "",
        certificate: str = "",
        budget: ReadBudget | None = None,
        interval: float = 0.5,
    ) -> None:
        self.incarnation = f"backend-{uuid.uuid4().hex}"
        self._endpoint = Endpoint(url, server_name, certificate)
        self._home = str(home)
        self._nonce_file = Path(nonce_file)
        self._store = FileCredentialStore(state or default_state(home))
        self._locked = False
        self._budget = budget or ReadBudget()
        self._interval = interval
        self._handover: HandOver | None = None
        self._taking: asyncio.Task[HandOver | None] | None = None
        self._confirming: asyncio.Task[None] | None = None
        self._said = ""

    async def current(self) -> HandOver | None:
        """See ``HandOverSource``."""
        return self._handover

    async def wait_newer(self, than: HandOver | None) -> HandOver:
        """See ``HandOverSource``. Waits for a server that is not up yet. Raises ``FinalError`` when another owner
        has taken the server over, or its nonce has been used by somebody else."""
        while True:
            if than is not None and self._handover is not None and self._handover.supersedes(than):
                return self._handover
            if self._handover is None or await self._replaced(self._handover):
                taken = await self._taken()
                if taken is not None and taken.supersedes(than):
                    return taken
            await asyncio.sleep(self._interval)

    async def aclose(self) -> None:
        """Let the next process have it. The server is told nothing."""
        if self._taking is not None:
            await asyncio.wait({self._taking}, timeout=FINISH)
            await cancelled(self._taking)
        if self._confirming is not None:
            await cancelled(self._confirming)
        if self._locked:
            self._locked = False
            await self._store.__aexit__(None, None, None)

    async def _replaced(self, handover: HandOver) -> bool:
        """Whether another server has taken the place of ours. Raises ``FinalError`` when ours has another owner."""
        async with self._client(handover.credential, handover.server_identity) as client:
            try:
                identity = await client.identity()
                if identity.server_identity != handover.server_identity:
                    return True
                await client.claim()
            except NotAccepted:
                raise _lost("another owner has taken the control server over") from None
            except ForeignServer as error:
                if error.doubt is Doubt.PROOF and error.certain:
                    raise _lost("the control server does not know our credential any more") from None
                self._say(str(error))
            except ControlError as error:
                self._say(str(error))
        return False

    async def _taken(self) -> HandOver | None:
        """``_take``, which whoever stops waiting does not interrupt: between a handshake and the storing of its
        credential, that would lock us out for good."""
        taking = self._taking = self._taking or asyncio.create_task(self._take(), name="take ownership")
        try:
            return await asyncio.shield(taking)
        finally:
            if taking.done():
                self._taking = None

    async def _take(self) -> HandOver | None:
        """Own the server that answers, if one does."""
        try:
            if not self._locked:
                await self._store.__aenter__()
                self._locked = True
            adoption = await self._adoption()
        except StoreFailed as error:
            self._say(str(error))
            return None
        if adoption.outcome is not AdoptionOutcome.ADOPTED or adoption.holding is None:
            self._say(f"the control server is not ours yet: {adoption.reason}")
            return None
        if adoption.unconfirmed:
            self._confirming = asyncio.create_task(self._confirm(adoption.holding), name="confirm")
        self._handover = _handover(adoption.holding)
        return self._handover

    async def _adoption(self) -> Adoption:
        adopter = Adopter(self._store, self.incarnation, budget=self._budget)
        stored = await self._store.load()
        if stored is not None:
            identity = await self._identity()
            if identity is None:
                # Nobody, or a program that is no control server and has the port for now: ours may be there later.
                return _NOBODY
            if identity == stored.server_identity:
                adoption = await adopter.adopt()
                if adoption.reason is not AdoptionReason.IDENTITY_MISMATCH:
                    return _judged(adoption)
                # Another server, or none, may have come in between.
                return _judged(adoption) if await self._identity() == identity else _NOBODY
        nonce = await asyncio.to_thread(self._nonce)
        if nonce is None:
            return Adoption(AdoptionOutcome.REFUSED, AdoptionReason.CREDENTIAL_UNAVAILABLE)
        greeted = await adopter.greet(self._endpoint, self._home, nonce)
        if greeted.reason is AdoptionReason.AUTHENTICATION_FAILED:
            raise _lost("the control server's nonce is wrong, or was used: start the server anew")
        return greeted

    async def _identity(self) -> str | None:
        async with self._client(None, None) as client:
            try:
                return (await client.identity()).server_identity
            except ControlError:
                return None

    def _nonce(self) -> Masked | None:
        try:
            return Masked(self._nonce_file.read_text().strip())
        except (OSError, UnicodeError) as error:
            self._say(f"{self._nonce_file} cannot be read ({type(error).__name__})")
            return None

    async def _confirm(self, holding: Holding) -> None:
        """An adoption that is stored is one, confirmed or not; the old credential should end all the same."""
        adopter = Adopter(self._store, self.incarnation, budget=self._budget)
        async with self._client(holding.credential, holding.server_identity) as client:
            for wait in delays():
                try:
                    await adopter.confirm(client, holding)
                    return
                except (ControlError, StoreFailed) as error:
                    self._say(f"the rotation is not confirmed yet: {error}")
                await asyncio.sleep(wait)

    def _client(self, credential: Masked | None, identity: str | None) -> ControlClient:
        return ControlClient(
            self._endpoint,
            credential=credential,
            home_dir=self._home,
            expected_identity=identity,
            budget=self._budget,
        )

    def _say(self, text: str) -> None:
        if text != self._said:
            log.warning("%s", text)
        self._said = text


def default_state(home: Path | str) -> Path:
    """Where the credential is kept unless somewhere else is named: beside the home, not in it."""
    path = Path(home)
    return path.with_name(f"{path.name}-owner") / "credential.json"


_NOBODY = Adoption(AdoptionOutcome.NO_SERVER, AdoptionReason.NO_ANSWER)


def _judged(adoption: Adoption) -> Adoption:
    if adoption.reason in (AdoptionReason.AUTHENTICATION_FAILED, AdoptionReason.IDENTITY_MISMATCH):
        raise _lost("the control server does not accept the stored credential: it has another owner")
    if adoption.reason is AdoptionReason.CAPABILITY_INCOMPATIBLE:
        raise _lost("the control server lacks a capability that is needed")
    return adoption


def _lost(text: str) -> FinalError:
    return FinalError(Final.OWNERSHIP_LOST, text)


def _handover(holding: Holding) -> HandOver:
    assert holding.credential is not None
    return HandOver(
        endpoint=holding.endpoint.url,
        credential=holding.credential,
        server_identity=holding.server_identity,
        home_dir=holding.home_dir,
        rotation_id=holding.rotation_id,
        server_name=holding.endpoint.server_name,
        certificate=holding.endpoint.certificate,
    )
