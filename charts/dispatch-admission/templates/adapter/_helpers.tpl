{{/* The configuration of the adapter but for the policy, which holds from start to end. */}}
{{- define "dispatch-admission.adapterSettings" -}}
{{- $adapter := .Values.adapter -}}
listen:
{{- if eq $adapter.mode "Sidecar" }}
  unixSocket: {{ include "dispatch-admission.socket" . }}
{{- else }}
  https:
    address: {{ printf ":%d" (int $adapter.service.port) | quote }}
    certFile: /etc/dispatch-hook-tls/tls.crt
    keyFile: /etc/dispatch-hook-tls/tls.key
    clientCAFile: /etc/dispatch-hook-tls/ca.crt
{{- if $adapter.startGate.enabled }}
kueue:
  {{- include "dispatch-admission.admissionLease" . | nindent 2 }}
  {{- with $adapter.startGate.localQueue }}
  localQueue: {{ . | quote }}
  {{- end }}
  {{- with $adapter.startGate.namespace }}
  namespace: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Rolls the pods when what the adapter reads only once is another. */}}
{{- define "dispatch-admission.adapterChecksum" -}}
dispatch.phpboyscout.uk/adapter-settings: {{ include "dispatch-admission.adapterSettings" . | sha256sum | trunc 16 | quote }}
{{- end -}}

{{/* The adapter's container but for its name. */}}
{{- define "dispatch-admission.adapterContainer" -}}
{{- $adapter := .Values.adapter -}}
image: {{ include "dispatch-admission.imageOf" (list . $adapter.image) | quote }}
imagePullPolicy: {{ ($adapter.image | default dict).pullPolicy | default .Values.image.pullPolicy }}
command:
  {{- toYaml $adapter.command | nindent 2 }}
args:
  - -config=/etc/dispatch-hook/config.yaml
  - {{ printf "-metrics-bind-address=:%d" (int $adapter.metricsPort) | quote }}
  - {{ printf "-log-level=%s" .Values.log.level | quote }}
  - {{ printf "-log-format=%s" .Values.log.format | quote }}
  {{- range $adapter.extraArgs }}
  - {{ . | quote }}
  {{- end }}
{{- with $adapter.extraEnv }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  {{- if eq $adapter.mode "Deployment" }}
  - name: https
    containerPort: {{ int $adapter.service.port }}
    protocol: TCP
  {{- end }}
  - name: hook-metrics
    containerPort: {{ int $adapter.metricsPort }}
    protocol: TCP
livenessProbe:
  httpGet:
    path: /healthz
    port: hook-metrics
  initialDelaySeconds: 15
  periodSeconds: 20
readinessProbe:
  httpGet:
    path: /readyz
    port: hook-metrics
  periodSeconds: 5
{{ include "dispatch-admission.container" (list . $adapter.resources) }}
volumeMounts:
  # A folder, not a file: what is mounted with subPath never changes.
  - name: config
    mountPath: /etc/dispatch-hook
    readOnly: true
  {{- if eq $adapter.mode "Deployment" }}
  - name: tls
    mountPath: /etc/dispatch-hook-tls
    readOnly: true
  {{- else }}
  - name: socket
    mountPath: {{ include "dispatch-admission.socketDir" . }}
  {{- end }}
  {{- with $adapter.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* The volumes of the pods with the adapter. */}}
{{- define "dispatch-admission.adapterVolumes" -}}
- name: config
  configMap:
    name: {{ include "dispatch-admission.named" (list . "adapter") | quote }}
{{- if eq .Values.adapter.mode "Deployment" }}
- name: tls
  secret:
    secretName: {{ include "dispatch-admission.serverSecret" . | quote }}
{{- else }}
- name: socket
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
{{- end }}
{{- with .Values.adapter.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
