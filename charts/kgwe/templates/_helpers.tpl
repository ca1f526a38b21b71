{{/* The namespace of the Lease, of the signing key and of the orders to checkpoint. */}}
{{- define "kgwe.leaseNamespace" -}}
{{ .Values.controller.leaderElection.namespace | default .Release.Namespace }}
{{- end }}

{{/* Labels of an object. Arguments: root, name. */}}
{{- define "kgwe.labels" -}}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: kgwe
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{/* Name of an image. Arguments: root, repository, tag. */}}
{{- define "kgwe.image" -}}
{{- with .root.Values.global.imageRegistry }}{{ trimSuffix "/" . }}/{{ end }}{{ .repository }}:{{ .tag | default .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- define "kgwe.pullSecrets" -}}
{{- with .Values.global.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Seconds of a duration such as 500ms, 30s, 5m, 1h30m or 90d. Arguments: value, path. */}}
{{- define "kgwe.seconds" -}}
{{- $text := toString .value }}
{{- if not (regexMatch "^([0-9]+(ms|s|m|h|d))+$" $text) }}
{{- fail (printf "%s: %q is not a duration such as 30s, 5m or 1h" .path $text) }}
{{- end }}
{{- $total := 0.0 }}
{{- range regexFindAll "[0-9]+(ms|s|m|h|d)" $text -1 }}
{{- $number := regexFind "^[0-9]+" . | float64 }}
{{- $unit := regexFind "[a-z]+$" . }}
{{- $total = addf $total (mulf $number (get (dict "ms" 0.001 "s" 1 "m" 60 "h" 3600 "d" 86400) $unit)) }}
{{- end }}
{{- $total }}
{{- end }}

{{/* Objects of a file of this chart. Arguments: root, file, and optionally omit (kinds), leaseKinds (kinds that live in
     the namespace of the Lease) and annotations of the ServiceAccount. */}}
{{- define "kgwe.objects" -}}
{{- $here := . }}
{{- $lease := include "kgwe.leaseNamespace" .root }}
{{- $text := .root.Files.Get .file | replace "kgwe-system" .root.Release.Namespace | replace "kgwe-node" .root.Values.agent.namespace }}
{{- if .root.Values.secondScheduler.enabled }}
{{- $text = $text | replace "'default-scheduler'" (printf "'%s'" .root.Values.scheduler.name) }}
{{- end }}
{{- range $part := regexSplit "(?m)^---$" $text -1 }}
{{- $object := fromYaml $part }}
{{- if and $object $object.kind (not (has $object.kind ($here.omit | default list))) }}
{{- if and (has $object.kind ($here.leaseKinds | default list)) $object.metadata.namespace }}
{{- $_ := set $object.metadata "namespace" $lease }}
{{- end }}
{{- if and (eq $object.kind "ServiceAccount") $here.annotations }}
{{- $_ := set $object.metadata "annotations" $here.annotations }}
{{- end }}
---
{{ toYaml $object }}
{{ end }}
{{- end }}
{{- end }}

{{/* Whether the process of the webhook runs: for pods, or only for certificates. */}}
{{- define "kgwe.runsWebhook" -}}
{{- if or .Values.webhook.enabled (eq .Values.certificates.source "kgwe") }}true{{ end }}
{{- end }}

{{/* Servers with a certificate, and their names. */}}
{{- define "kgwe.certificates" -}}
{{- $space := .Release.Namespace }}
{{- $names := dict }}
{{- if .Values.webhook.enabled }}{{ $_ := set $names "kgwe-webhook" (list (printf "kgwe-webhook.%s.svc" $space) (printf "kgwe-webhook.%s.svc.cluster.local" $space)) }}{{ end }}
{{- if .Values.scheduler.enabled }}{{ $_ := set $names "kgwe-extender" (list (printf "kgwe-scheduler.%s.svc" $space) (printf "kgwe-gang-seats.%s.svc" $space) "localhost" "127.0.0.1") }}{{ $_ := set $names "kgwe-kube-scheduler" (list "kgwe-kube-scheduler") }}{{ end }}
{{- if .Values.optimizer.enabled }}{{ $_ := set $names "kgwe-optimizer" (list "kgwe-optimizer" (printf "kgwe-optimizer.%s.svc" $space) "localhost") }}{{ end }}
{{- if and .Values.costEngine.enabled .Values.costEngine.api.enabled }}{{ $_ := set $names "kgwe-cost-engine" (list "kgwe-cost-engine" (printf "kgwe-cost-engine.%s.svc" $space) "localhost") }}{{ end }}
{{- if .Values.console.enabled }}{{ $_ := set $names "kgwe-console" (list "kgwe-console" (printf "kgwe-console.%s.svc" $space) "localhost") }}{{ end }}
{{- toYaml $names }}
{{- end }}

{{/* Settings of price files for processes that use the ConfigMap. */}}
{{- define "kgwe.priceFiles" -}}
{{- $found := list }}
{{- if .Values.costEngine.priceConfigMap }}
{{- range .Values.costEngine.priceFiles }}{{ $found = append $found (printf "/etc/kgwe/prices/%s" .) }}{{ end }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{/* Lease settings of an app. Arguments: root. */}}
{{- define "kgwe.leaseSettings" -}}
leaderElect: {{ .Values.controller.leaderElection.enabled }}
leaseNamespace: {{ include "kgwe.leaseNamespace" . }}
leaseDurationSeconds: {{ include "kgwe.seconds" (dict "value" .Values.controller.leaderElection.leaseDuration "path" "controller.leaderElection.leaseDuration") | float64 | int }}
renewDeadlineSeconds: {{ include "kgwe.seconds" (dict "value" .Values.controller.leaderElection.renewDeadline "path" "controller.leaderElection.renewDeadline") }}
retryPeriodSeconds: {{ include "kgwe.seconds" (dict "value" .Values.controller.leaderElection.retryPeriod "path" "controller.leaderElection.retryPeriod") }}
{{- end }}

{{/*
A process of KGWE: ConfigMap with its settings, Deployment, and its Lease.
Arguments:
  root, name (of all objects), account, command (of kgwe), values (of the component)
  settings   dict, merged under values.settings
  ports      list of name and number
  secret     name of the Secret with its certificate, mounted at /etc/kgwe/tls
  lease      name of its Lease
  store      values of its store, if it has one
  writable   folders that it writes to
  prices     whether it reads price files
  ready      path of the readiness probe
  leader     whether its Service selects the leader by a label
*/}}
{{- define "kgwe.process" -}}
{{- $root := .root }}
{{- $values := .values }}
{{- $settings := mergeOverwrite (deepCopy (.settings | default dict)) ($values.settings | default dict) }}
{{- $prices := and .prices $root.Values.costEngine.priceConfigMap }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .name }}-settings
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "kgwe.labels" (dict "root" $root "name" .name) | nindent 4 }}
data:
  settings.yaml: |
    {{- toYaml $settings | nindent 4 }}
{{- if .lease }}
---
# Owned by the release, so that it does not stay behind. The process fills it.
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  name: {{ .lease }}
  namespace: {{ include "kgwe.leaseNamespace" $root }}
  labels:
    {{- include "kgwe.labels" (dict "root" $root "name" .name) | nindent 4 }}
{{- end }}
{{- if and .store .store.size (not .store.existingSecret) }}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ .name }}-store
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "kgwe.labels" (dict "root" $root "name" .name) | nindent 4 }}
  annotations:
    # History and ledger are data of the user: they stay when the release is removed.
    helm.sh/resource-policy: keep
spec:
  accessModes: [ReadWriteOnce]
  {{- with .store.storageClassName }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .store.size }}
{{- end }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "kgwe.labels" (dict "root" $root "name" .name) | nindent 4 }}
spec:
  replicas: {{ $values.replicaCount }}
  strategy:
    {{- if .store }}
    # Two replicas cannot share a SQLite file.
    type: Recreate
    {{- else }}
    type: RollingUpdate
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
    {{- end }}
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ .name }}
  template:
    metadata:
      labels:
        {{- include "kgwe.labels" (dict "root" $root "name" .name) | nindent 8 }}
      annotations:
        checksum/settings: {{ toYaml $settings | sha256sum }}
        prometheus.io/scrape: "true"
        prometheus.io/port: "8080"
    spec:
      serviceAccountName: {{ .account }}
      {{- include "kgwe.pullSecrets" $root | nindent 6 }}
      {{- if $root.Values.priorityClass.create }}
      priorityClassName: {{ $root.Values.priorityClass.name }}
      {{- end }}
      terminationGracePeriodSeconds: 30
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      topologySpreadConstraints:
        {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
        - maxSkew: 1
          topologyKey: {{ $key }}
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              app.kubernetes.io/name: {{ $.name }}
        {{- end }}
      {{- with $values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .name }}
          image: {{ include "kgwe.image" (dict "root" $root "repository" $root.Values.image.repository) }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          args: [{{ .command }}, --config, /etc/kgwe/settings/settings.yaml]
          env:
            - name: KGWE_POD_NAME
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
            - name: KGWE_POD_NAMESPACE
              valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
            {{- if and .store .store.existingSecret }}
            - name: {{ .storeVariable }}
              valueFrom: {secretKeyRef: {name: {{ .store.existingSecret }}, key: url}}
            {{- end }}
            {{- with $values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            - {name: metrics, containerPort: 8080}
            {{- range .ports }}
            - {name: {{ .name }}, containerPort: {{ .number }}}
            {{- end }}
          startupProbe:
            httpGet: {path: /healthz, port: metrics}
            periodSeconds: 1
            failureThreshold: 120
          livenessProbe:
            httpGet: {path: /healthz, port: metrics}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: {{ .ready | default "/readyz" }}, port: metrics}
            periodSeconds: 2
            timeoutSeconds: 2
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
          volumeMounts:
            - {name: settings, mountPath: /etc/kgwe/settings, readOnly: true}
            - {name: tmp, mountPath: /tmp}
            {{- if .secret }}
            - {name: tls, mountPath: /etc/kgwe/tls, readOnly: true}
            {{- end }}
            {{- if $prices }}
            - {name: prices, mountPath: /etc/kgwe/prices, readOnly: true}
            {{- end }}
            {{- if .store }}
            - {name: store, mountPath: /var/lib/kgwe}
            {{- end }}
            {{- range $number, $path := .writable }}
            - {name: writable-{{ $number }}, mountPath: {{ $path }}}
            {{- end }}
      volumes:
        - name: settings
          configMap: {name: {{ .name }}-settings}
        - name: tmp
          emptyDir: {}
        {{- if .secret }}
        - name: tls
          secret:
            secretName: {{ .secret }}
            # The items must exist: the pod waits until the certificate is issued.
            items:
              - {key: tls.crt, path: tls.crt}
              - {key: tls.key, path: tls.key}
              - {key: ca.crt, path: ca.crt}
        {{- end }}
        {{- if $prices }}
        - name: prices
          configMap: {name: {{ $root.Values.costEngine.priceConfigMap }}}
        {{- end }}
        {{- if .store }}
        - name: store
          {{- if and .store.size (not .store.existingSecret) }}
          persistentVolumeClaim: {claimName: {{ .name }}-store}
          {{- else }}
          emptyDir: {}
          {{- end }}
        {{- end }}
        {{- range $number, $path := .writable }}
        - name: writable-{{ $number }}
          emptyDir: {}
        {{- end }}
{{- end }}

{{/* A Service. Arguments: root, name, ports (name, number, target), and optionally selects,
     leader, clusterIP. */}}
{{- define "kgwe.service" -}}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "kgwe.labels" (dict "root" .root "name" .name) | nindent 4 }}
spec:
  {{- with .clusterIP }}
  clusterIP: {{ . }}
  {{- end }}
  selector:
    app.kubernetes.io/name: {{ .selects | default .name }}
    {{- if .leader }}
    kgwe.nvidia.io/leader: "true"
    {{- end }}
  ports:
    {{- range .ports }}
    - {name: {{ .name }}, port: {{ .number }}, targetPort: {{ .target | default .name }}}
    {{- end }}
{{- end }}

{{- define "kgwe.disruptionBudget" -}}
{{- if and .values.podDisruptionBudget.enabled (gt (int .values.replicaCount) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "kgwe.labels" (dict "root" .root "name" .name) | nindent 4 }}
spec:
  minAvailable: {{ .values.podDisruptionBudget.minAvailable }}
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ .name }}
{{- end }}
{{- end }}
