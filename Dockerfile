# The upgrader's image: one static program and one bundle, nothing else. There
# is no shell and no libc in it; the program enters the host by itself and runs
# what is there.
#
#   make image-content       stages out/image/upgrader and out/image/bundle
#   docker build --build-arg VERSION=v1.36.3 --tag REGISTRY/upgrader:v1.36.3 .
#
# Nothing is compiled here, on purpose. `make image` writes an OCI archive from
# the same directory without any container tooling, so that both images have the
# same content, and a bundle is verified before it gets in. The image is for the
# architecture that the bundle names.
FROM scratch

# Which Kubernetes the bundle brings, and the commit that the program is from.
ARG VERSION=dev
ARG REVISION=unknown

LABEL org.opencontainers.image.title="node-upgrader" \
      org.opencontainers.image.description="Upgrades the Kubernetes components of the node it runs on, in place" \
      org.opencontainers.image.source="https://github.com/node-upgrader/node-upgrader" \
      org.opencontainers.image.url="https://github.com/node-upgrader/node-upgrader" \
      org.opencontainers.image.documentation="https://github.com/node-upgrader/node-upgrader/blob/main/README.md" \
      org.opencontainers.image.vendor="node-upgrader" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# Named one by one: what else may lie there does not get in.
COPY out/image/upgrader /upgrader
COPY out/image/bundle /bundle

# Entering the host's namespaces takes root.
USER 0:0
ENTRYPOINT ["/upgrader"]
