"""The Dockerfile of the images, written from the same recipes as the OCI builder."""

from __future__ import annotations

from typing import Final

from kgwe.images import recipe as recipes

_HEAD: Final = """\
# syntax=docker/dockerfile:1
# Written by `kgwe image dockerfile` from src/kgwe/images/recipe.py; `make check` compares the two.
#
#   docker build --target kgwe       --tag kgwe:dev       --file images/Dockerfile .
#   docker build --target kgwe-agent --tag kgwe-agent:dev --file images/Dockerfile .
ARG BASE=debian:{suite}-slim

FROM ${{BASE}} AS build
RUN apt-get update && apt-get install --yes --no-install-recommends python3-pip python3-venv
COPY . /src
RUN python3 -m venv /build && /build/bin/pip install --quiet hatchling editables \\
 && /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir=/wheel /src
"""

_STAGE: Final = """\

# {title}.
FROM build AS {name}-files
RUN python3 -m pip install --no-deps --no-compile --only-binary=:all: --target={home}/lib \\
      --requirement=/src/{requirements} /wheel/kgwe-*.whl \\
 && rm -rf {home}/lib/bin && mkdir -p {home}/bin \\
 && printf '#!/usr/bin/python3\\nimport sys\\nfrom kgwe.cli.main import main\\nsys.exit(main())\\n' \\
      > {home}/bin/kgwe \\
 && chmod 755 {home}/bin/kgwe \\
 && python3 -m compileall -q --invalidation-mode unchecked-hash {home}/lib

FROM ${{BASE}} AS {name}
RUN apt-get update \\
 && apt-get install --yes --no-install-recommends {packages} \\
 && rm -rf /var/lib/apt/lists/* && mkdir -p /var/lib/kgwe
COPY --from={name}-files {home} {home}
ENV {environment}
USER {user}:{user}
ENTRYPOINT [{entrypoint}]
CMD [{command}]
"""


def render() -> str:
    """The text of images/Dockerfile."""
    stages = [
        _STAGE.format(
            title=recipe.title,
            name=recipe.name,
            home=recipes.HOME,
            requirements=recipe.requirements,
            packages=" ".join(sorted(recipe.debian_packages)),
            environment=" \\\n    ".join(f"{name}={value}" for name, value in sorted(recipe.environment.items())),
            user=recipe.user_id,
            entrypoint=", ".join(f'"{each}"' for each in recipe.entrypoint),
            command=", ".join(f'"{each}"' for each in recipe.command),
        )
        for recipe in recipes.RECIPES
    ]
    return _HEAD.format(suite=recipes.DEBIAN_SUITE) + "".join(stages)
