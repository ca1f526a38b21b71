"""A kubelet plugin for dynamic resource allocation (`v1`): prepares the devices of ResourceClaims for containers.

Two sockets: one in `plugins_registry`, by which the kubelet finds the plugin, and one with the plugin's service. The
kubelet removes neither. A restarted kubelet finds the registration socket again on its own.

A `Preparer` does the work; this module only implements the protocols.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc
import grpc.aio
import structlog

from kgwe import errors
from kgwe.hardware.kubelet import sockets
from kgwe.proto import draplugin_pb2 as pb
from kgwe.proto import pluginregistration_pb2 as registration_pb

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

log = structlog.get_logger(__name__)

#: folder of registration sockets, below the kubelet's root directory
REGISTRY: Final = "plugins_registry"
#: folder of plugins' own sockets, below the kubelet's root directory
PLUGINS: Final = "plugins"
_TYPE: Final = "DRAPlugin"
_VERSIONS: Final = ("v1.DRAPlugin",)
_GRACE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class ClaimReference:
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device of a claim, as the kubelet passes it to the container runtime."""

    pool: str
    device: str
    requests: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    share: str | None = None


class Preparer(Protocol):
    """Both calls may be repeated, also after a restart, and do the same each time."""

    async def prepare(self, claim: ClaimReference) -> Sequence[PreparedDevice]:
        """Make the devices of a claim usable; raise a KgweError with the reason if that is impossible now."""
        ...

    async def unprepare(self, claim: ClaimReference) -> None:
        """Undo it; a claim that was never prepared is no error."""
        ...


class DraPlugin:
    """The plugin of one driver on two sockets."""

    def __init__(self, driver: str, preparer: Preparer, *, registration: Path, service: Path, endpoint: str) -> None:
        """`endpoint` is the path of the service's socket as the kubelet sees it."""
        self.driver = driver
        self._preparer = preparer
        self._registration = registration
        self._service = service
        self._endpoint = endpoint
        self._servers: dict[Path, tuple[grpc.aio.Server, tuple[int, int, int] | None]] = {}
        #: whether a kubelet has accepted the plugin
        self.is_registered = False
        #: why a kubelet has refused it; empty if none has
        self.problem = ""

    @property
    def is_serving(self) -> bool:
        """Return whether both sockets are there and are ours."""
        return len(self._servers) > 1 and all(
            mine is not None and sockets.read_identity(path) == mine for path, (_, mine) in self._servers.items()
        )

    async def start(self) -> None:
        """Serve on both sockets; raise Transient if that is impossible."""
        await self.stop()
        # The kubelet calls the service as soon as it finds the registration.
        await self._serve(self._service, self._build_service())
        await self._serve(self._registration, self._build_registration())

    async def _serve(self, path: Path, handlers: grpc.GenericRpcHandler) -> None:
        server = grpc.aio.server(options=sockets.OPTIONS)
        server.add_generic_rpc_handlers((handlers,))
        try:
            _make_room(path)
            server.add_insecure_port(sockets.socket_target(path))
            await server.start()
        except (RuntimeError, OSError) as exc:
            raise errors.Transient(f"cannot listen on {path}: {exc}") from exc
        self._servers[path] = (server, sockets.read_identity(path))

    async def stop(self) -> None:
        servers, self._servers = self._servers, {}
        self.is_registered = False
        # The registration ends first, so that the kubelet does not call a service that is gone.
        for path, (server, mine) in reversed(servers.items()):
            await server.stop(_GRACE_S)
            if mine is not None and sockets.read_identity(path) == mine:
                with contextlib.suppress(OSError):
                    path.unlink()

    # --- the protocols ----------------------------------------------------------------------------------

    async def get_info(self, _request: registration_pb.InfoRequest, _context: Any) -> registration_pb.PluginInfo:
        return registration_pb.PluginInfo(
            type=_TYPE, name=self.driver, endpoint=self._endpoint, supported_versions=_VERSIONS
        )

    async def notify(
        self, request: registration_pb.RegistrationStatus, _context: Any
    ) -> registration_pb.RegistrationStatusResponse:
        self.is_registered, self.problem = request.plugin_registered, request.error
        if request.plugin_registered:
            log.info("dra_plugin_registered", driver=self.driver)
        else:
            log.warning("dra_plugin_refused", driver=self.driver, error=request.error)
        return registration_pb.RegistrationStatusResponse()

    async def prepare(self, request: pb.NodePrepareResourcesRequest, _context: Any) -> pb.NodePrepareResourcesResponse:
        reply = pb.NodePrepareResourcesResponse()
        for each in request.claims:
            claim, entry = _decode_claim(each), reply.claims[each.uid]
            try:
                entry.devices.extend(_encode_device(device) for device in await self._preparer.prepare(claim))
            except Exception as exc:  # noqa: BLE001 - one bad claim must not delay the others of the pod
                entry.error = _explain("claim_not_prepared", claim, exc)
            else:
                log.info("claim_prepared", claim=str(claim), devices=[device.device_name for device in entry.devices])
        return reply

    async def unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, _context: Any
    ) -> pb.NodeUnprepareResourcesResponse:
        reply = pb.NodeUnprepareResourcesResponse()
        for each in request.claims:
            claim, entry = _decode_claim(each), reply.claims[each.uid]
            try:
                await self._preparer.unprepare(claim)
            except Exception as exc:  # noqa: BLE001 - see above
                entry.error = _explain("claim_not_unprepared", claim, exc)
            else:
                log.info("claim_unprepared", claim=str(claim))
        return reply

    def _build_service(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
            {
                "NodePrepareResources": _build_handler(
                    self.prepare, pb.NodePrepareResourcesRequest, pb.NodePrepareResourcesResponse
                ),
                "NodeUnprepareResources": _build_handler(
                    self.unprepare, pb.NodeUnprepareResourcesRequest, pb.NodeUnprepareResourcesResponse
                ),
            },
        )

    def _build_registration(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "pluginregistration.Registration",
            {
                "GetInfo": _build_handler(self.get_info, registration_pb.InfoRequest, registration_pb.PluginInfo),
                "NotifyRegistrationStatus": _build_handler(
                    self.notify, registration_pb.RegistrationStatus, registration_pb.RegistrationStatusResponse
                ),
            },
        )


def _make_room(socket: Path) -> None:
    socket.parent.mkdir(parents=True, exist_ok=True)
    # Left by a killed process: nothing listens there.
    socket.unlink(missing_ok=True)


def _build_handler(call: Any, request: type[Any], reply: type[Any]) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        call, request_deserializer=request.FromString, response_serializer=reply.SerializeToString
    )


def _decode_claim(claim: pb.Claim) -> ClaimReference:
    return ClaimReference(claim.namespace, claim.name, claim.uid)


def _encode_device(device: PreparedDevice) -> pb.Device:
    return pb.Device(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi,
        share_id=device.share,
    )


def _explain(event: str, claim: ClaimReference, exc: Exception) -> str:
    """Log the failure, and return what the kubelet writes into the Event of the pod."""
    if isinstance(exc, errors.KgweError):
        log.warning(event, claim=str(claim), error=str(exc))
        return str(exc)
    log.error(event, claim=str(claim), exc_info=exc)
    return f"{type(exc).__name__}: {exc}"
