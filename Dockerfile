# syntax=docker/dockerfile:1

FROM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY internal internal
COPY examples examples
ARG VERSION=
ENV CGO_ENABLED=0
RUN go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/inboxd ./cmd/inboxd \
 && go build -trimpath -ldflags "-s -w" -o /out/handler-go ./examples/handler-go \
 && mkdir /out/data

# The example service of deploy/compose: docker build --target handler-go .
FROM gcr.io/distroless/static-debian12:nonroot AS handler-go
COPY --from=build /out/handler-go /handler-go
COPY --from=build --chown=65532:65532 /out/data /data
USER 65532:65532
VOLUME /data
EXPOSE 8080
ENTRYPOINT ["/handler-go", "--listen", ":8080", "--db", "/data/orders.db"]

# inboxd: one static binary, no shell, read-only but for its volume.
FROM gcr.io/distroless/static-debian12:nonroot AS inboxd
COPY --from=build /out/inboxd /inboxd
COPY --from=build --chown=65532:65532 /out/data /var/lib/inboxd
# A number, because Kubernetes cannot tell from a name that it is not root.
USER 65532:65532
# The default store, sqlite:inboxd.db, lies here.
WORKDIR /var/lib/inboxd
VOLUME /var/lib/inboxd
ENV INBOXD_CONFIG=/etc/inboxd/inboxd.yaml
EXPOSE 9320
HEALTHCHECK --interval=10s --timeout=5s --start-period=15s --retries=3 CMD ["/inboxd", "health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/inboxd"]
CMD ["run", "-c", "/etc/inboxd/inboxd.yaml"]
