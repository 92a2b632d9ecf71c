# One image for all of Tenure's programs: `docker build -t tenure .`
#
# BASE_IMAGE is any Debian-like image whose python3 is 3.11 or newer and has venv. No registry, no certificate and no
# setting of the building machine gets into the image: a private certificate authority comes as the optional build
# secret "ca-bundle" (docker build --secret id=ca-bundle,src=/etc/ssl/certs/ca-certificates.crt).
ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS build
WORKDIR /build
# Two environments: the tools that build stay here, only /opt/tenure moves on.
RUN python3 -m venv /opt/tools && python3 -m venv --without-pip /opt/tenure
# Dependencies before sources: an edit of the sources installs nothing again.
COPY requirements/runtime.txt ./requirements/
RUN --mount=type=secret,id=ca-bundle \
    if [ -s /run/secrets/ca-bundle ]; then export PIP_CERT=/run/secrets/ca-bundle; fi; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore; \
    /opt/tools/bin/pip install --quiet 'hatchling>=1.27,<2' && \
    /opt/tools/bin/pip --python /opt/tenure/bin/python install --quiet --require-hashes --only-binary :all: \
        --requirement requirements/runtime.txt && \
    # The Kubernetes client's thousands of models are never loaded: their bytecode would only make the image larger.
    find /opt/tenure -path '*/kubernetes/*client/*/__pycache__/*' \( -path '*/models/*' -o -path '*/api/*' \) -delete
COPY pyproject.toml README.md ./
COPY operator/tenure ./operator/tenure
RUN export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore; \
    /opt/tools/bin/pip wheel --quiet --no-deps --no-build-isolation --no-cache-dir --wheel-dir dist . && \
    /opt/tools/bin/pip --python /opt/tenure/bin/python install --quiet --no-deps --no-index dist/*.whl

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="tenure" \
      org.opencontainers.image.description="A Kubernetes operator for long-running AI agents" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 tenure && \
    useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin tenure
COPY --from=build /opt/tenure /opt/tenure
# The root file system may be read-only: nothing is written but to /tmp, an emptyDir in a pod.
ENV PATH=/opt/tenure/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8080
ENTRYPOINT ["tenure"]
CMD ["--help"]
