# Built from the repository's root: docker build -t oncewire .

# What decides which dependencies there are, and nothing else: each package with a target that is empty.
FROM debian:bookworm-slim AS manifests
WORKDIR /repository
COPY . .
RUN find . -name Cargo.toml -exec sh -c 'mkdir -p "/manifests/${1%/*}/src" && cp "$1" "/manifests/$1" && touch "/manifests/${1%/*}/src/lib.rs" && echo "fn main() {}" > "/manifests/${1%/*}/src/main.rs"' sh {} \; \
    && cp Cargo.lock /manifests/

FROM rust:1-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
# Traces of panics need neither in a container.
ENV CARGO_PROFILE_RELEASE_STRIP=symbols CARGO_PROFILE_RELEASE_DEBUG=none
# The dependencies, in a layer of their own: it is built again only when they change.
COPY --from=manifests /manifests .
RUN cargo build --release --locked --package oncewire \
    && cargo clean --release --package oncewire --package oncewire-protocol \
    && find . -name '*.rs' -not -path './target/*' -delete
COPY . .
RUN cargo build --release --locked --package oncewire

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates curl \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home oncewire \
    && install --directory --owner oncewire --mode 0700 /data
COPY --from=build /source/target/release/oncewire /usr/local/bin/oncewire
USER oncewire
EXPOSE 7080 8443
# Sessions and messages. Without a volume of its own they go with the container.
VOLUME /data
# The access key comes in as ONCEWIRE_ACCESS_KEY, at least 32 bytes. Where TLS is on, plain http is served only if
# ONCEWIRE_LISTEN asks for it.
ENV ONCEWIRE_DEFAULT_LISTEN=0.0.0.0:7080 ONCEWIRE_TLS_LISTEN=0.0.0.0:8443 ONCEWIRE_DATA_DIR=/data
# A start that has much to read from the disk takes its time, and is not ill.
HEALTHCHECK --start-period=10m --interval=10s --timeout=3s \
    CMD curl --fail --silent --head http://127.0.0.1:7080/api/health || curl --fail --silent --head --insecure https://127.0.0.1:8443/api/health
ENTRYPOINT ["oncewire"]
CMD ["serve"]
