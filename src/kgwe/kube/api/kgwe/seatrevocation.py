"""SeatRevocation: Jobs whose pods no longer get the seats that are written in their pod template."""

from typing import Annotated, ClassVar

from kgwe.kube.api.schema import AGE, ApiStruct, CustomObject, Definition, about

#: the only object that the admission policy reads
NAME = "default"
MOST_JOBS = 10_000


class SeatRevocationSpec(ApiStruct, frozen=True):
    """The Jobs whose plan was changed after they were created."""

    jobs: Annotated[
        dict[str, str],
        about("UID of each Job, with its namespace and name. Entries of deleted Jobs are removed.", max_keys=MOST_JOBS),
    ] = {}


class SeatRevocation(CustomObject, frozen=True):
    """Jobs whose pods wait for KGWE again, because their seats were changed.

    The pod template of a Job cannot be changed. KGWE lists the Job here when it moves pods to other nodes, and the
    admission policy kgwe-seats then leaves the scheduling gate on its new pods. Written by KGWE only.
    """

    definition: ClassVar = Definition(
        group="kgwe.nvidia.io",
        version="v1",
        kind="SeatRevocation",
        plural="seatrevocations",
        namespaced=False,
        columns=(AGE,),
    )

    spec: SeatRevocationSpec = SeatRevocationSpec()
