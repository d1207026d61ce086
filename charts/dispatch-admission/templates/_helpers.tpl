{{/*
Name of the objects. A release name has at most 53 characters, so what is cut off
is never what tells two releases apart.
*/}}
{{- define "dispatch-admission.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The full name with a suffix: root, suffix. What has to be cut off leaves a hash, so that it
still tells two releases apart. 57 characters leave room for what the name of a pod adds to
that of its Job.
*/}}
{{- define "dispatch-admission.named" -}}
{{- $full := include "dispatch-admission.fullname" (first .) -}}
{{- $suffix := last . -}}
{{- $name := printf "%s-%s" $full $suffix -}}
{{- if gt (len $name) 57 -}}
{{- $name = printf "%s-%s-%s" ($full | trunc (int (sub 50 (len $suffix))) | trimSuffix "-") ($full | sha256sum | trunc 5) $suffix -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "dispatch-admission.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "dispatch-admission.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Where the Lease is. The flags, the Role, the start gate and the notes all ask here. */}}
{{- define "dispatch-admission.leaseNamespace" -}}
{{- default .Release.Namespace .Values.lease.namespace -}}
{{- end -}}

{{/* What dispatchers and the adapter must know of the Lease. */}}
{{- define "dispatch-admission.admissionLease" -}}
admissionLease:
  namespace: {{ include "dispatch-admission.leaseNamespace" . | quote }}
  name: {{ .Values.lease.name | quote }}
{{- end -}}

{{/* Secrets that the controller may read, as JSON: those given, and those of the gates given. */}}
{{- define "dispatch-admission.hookClientCertificates" -}}
{{- $names := .Values.hookClientCertificates -}}
{{- range include "dispatch-admission.gates" . | fromJsonArray -}}
{{- with dig "hook" "endpoint" "clientCertificateSecret" "" .spec -}}
{{- $names = append $names . -}}
{{- end -}}
{{- end -}}
{{- $names | uniq | sortAlpha | toJson -}}
{{- end -}}

{{/* The gates of admissionChecks, as JSON: name and spec, a hook without endpoint being that of the adapter. */}}
{{- define "dispatch-admission.gates" -}}
{{- $root := . -}}
{{- $gates := list -}}
{{- range $i, $check := .Values.admissionChecks -}}
{{- if hasKey $check "gate" -}}
{{- $spec := deepCopy ($check.gate | default dict) -}}
{{- if hasKey $spec "hook" -}}
{{- $hook := $spec.hook | default dict -}}
{{- if not (hasKey $hook "endpoint") -}}
{{- $endpoint := include "dispatch-admission.adapterEndpoint" (list $root $i) | fromYaml -}}
{{- $hook = set $hook "endpoint" $endpoint -}}
{{- end -}}
{{- $spec = set $spec "hook" $hook -}}
{{- end -}}
{{- $gates = append $gates (dict "name" $check.name "spec" $spec) -}}
{{- end -}}
{{- end -}}
{{- toJson $gates -}}
{{- end -}}

{{/* Folder and path of the sidecar's socket. */}}
{{- define "dispatch-admission.socketDir" -}}/run/dispatch-hook{{- end -}}
{{- define "dispatch-admission.socket" -}}{{ include "dispatch-admission.socketDir" . }}/hook.sock{{- end -}}

{{/* The endpoint of the adapter, as in an AdmissionGate: root, index of the check that asks. */}}
{{- define "dispatch-admission.adapterEndpoint" -}}
{{- $root := first . -}}
{{- $adapter := $root.Values.adapter -}}
{{- if eq $adapter.mode "Sidecar" -}}
unixSocket: {{ include "dispatch-admission.socket" $root }}
{{- else if eq $adapter.mode "Deployment" -}}
url: {{ printf "https://%s.%s.svc:%d" (include "dispatch-admission.named" (list $root "adapter")) $root.Release.Namespace (int $adapter.service.port) }}
clientCertificateSecret: {{ include "dispatch-admission.clientSecret" $root | quote }}
{{- with $adapter.tls.caBundle }}
caBundle: {{ . | quote }}
{{- end }}
{{- else if eq $adapter.mode "External" -}}
{{- toYaml $adapter.endpoint -}}
{{- else -}}
{{- fail (printf "admissionChecks[%d].gate.hook: adapter.mode is None, so there is nobody to ask; set its endpoint, or leave the hook out" (last .)) -}}
{{- end -}}
{{- end -}}

{{/* Secrets of the adapter of the mode Deployment. */}}
{{- define "dispatch-admission.serverSecret" -}}
{{- .Values.adapter.tls.serverSecret | default (include "dispatch-admission.named" (list . "adapter-tls")) -}}
{{- end -}}
{{- define "dispatch-admission.clientSecret" -}}
{{- .Values.adapter.tls.clientSecret | default (include "dispatch-admission.named" (list . "hook-client")) -}}
{{- end -}}

{{/* Names of the checks that queues are to have, as JSON. */}}
{{- define "dispatch-admission.attachChecks" -}}
{{- $names := list -}}
{{- range .Values.admissionChecks -}}{{- $names = append $names .name -}}{{- end -}}
{{- .Values.clusterQueues.attach.checks | default $names | toJson -}}
{{- end -}}

{{/* Names of the ClusterQueues that are to have them, as JSON: those given and those created. */}}
{{- define "dispatch-admission.attachQueues" -}}
{{- $names := .Values.clusterQueues.attach.names -}}
{{- range .Values.clusterQueues.create -}}{{- $names = append $names .name -}}{{- end -}}
{{- $names | uniq | sortAlpha | toJson -}}
{{- end -}}

{{/* The AdmissionGate of an entry of admissionChecks: root, gate, and hook where it is a hook of Helm. */}}
{{- define "dispatch-admission.gate" -}}
{{- $annotations := dict -}}
{{- with .hook -}}
{{- $annotations = dict "helm.sh/hook" . "meta.helm.sh/release-name" $.root.Release.Name "meta.helm.sh/release-namespace" $.root.Release.Namespace -}}
{{- end -}}
apiVersion: dispatch.phpboyscout.uk/v1alpha1
kind: AdmissionGate
metadata:
  name: {{ .gate.name | quote }}
  labels:
    {{- include "dispatch-admission.labels" (list .root "controller") | nindent 4 }}
  {{- include "dispatch-admission.annotations" (list .root $annotations) | nindent 2 }}
spec:
  {{- toYaml .gate.spec | nindent 2 }}
{{- end -}}

{{/*
Selector of a component: root, component. It can never change, or no release can be
upgraded: no version, no chart, no value of the user's.
*/}}
{{- define "dispatch-admission.selectorLabels" -}}
app.kubernetes.io/name: dispatch-admission
app.kubernetes.io/instance: {{ (first .).Release.Name | quote }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{/* Labels of an object of a component: root, component. */}}
{{- define "dispatch-admission.labels" -}}
{{- $root := first . -}}
{{- $ours := dict -}}
{{- $_ := set $ours "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- $_ = set $ours "app.kubernetes.io/version" ($root.Chart.AppVersion | replace "+" "_" | trunc 63) -}}
{{- $_ = set $ours "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- $_ = set $ours "app.kubernetes.io/part-of" "dispatch-admission" -}}
{{- $selector := include "dispatch-admission.selectorLabels" . | fromYaml -}}
{{- mergeOverwrite (dict) ($root.Values.commonLabels | default dict) $ours $selector | toYaml -}}
{{- end -}}

{{/* The annotations of an object, with the key; nothing if there are none: root, those of the object. */}}
{{- define "dispatch-admission.annotations" -}}
{{- with mergeOverwrite (dict) ((first .).Values.commonAnnotations | default dict) (last . | default dict) -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* The metadata of an object of a component: root, name, component, and namespaced and annotations. */}}
{{- define "dispatch-admission.metadata" -}}
name: {{ .name | quote }}
{{- if ne .namespaced false }}
namespace: {{ .namespace | default .root.Release.Namespace | quote }}
{{- end }}
labels:
  {{- include "dispatch-admission.labels" (list .root .component) | nindent 2 }}
{{- with include "dispatch-admission.annotations" (list .root .annotations) }}
{{ . }}
{{- end }}
{{- end -}}

{{/* The metadata of pods of a component: root, component, annotations. Without the chart's
version: a new chart alone must not restart the leader. */}}
{{- define "dispatch-admission.podMetadata" -}}
{{- $root := .root -}}
labels:
  {{- $selector := include "dispatch-admission.selectorLabels" (list $root .component) | fromYaml }}
  {{- mergeOverwrite (dict) ($root.Values.commonLabels | default dict) ($root.Values.podLabels | default dict) $selector | toYaml | nindent 2 }}
{{- with mergeOverwrite (dict) ($root.Values.podAnnotations | default dict) (.annotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What all pods of the release have in common. */}}
{{- define "dispatch-admission.pod" -}}
{{- with include "dispatch-admission.imagePullSecrets" . }}
{{- . }}
{{ end }}
{{- with .Values.podSecurityContext -}}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What the pods that serve have in common besides: root, component. */}}
{{- define "dispatch-admission.server" -}}
{{- $root := first . -}}
{{- include "dispatch-admission.pod" $root }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
terminationGracePeriodSeconds: {{ int $root.Values.terminationGracePeriodSeconds }}
{{- with $root.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- $selector := dict "labelSelector" (dict "matchLabels" (include "dispatch-admission.selectorLabels" . | fromYaml)) }}
{{- range $root.Values.topologySpreadConstraints | default (list (dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway")) }}
  - {{- mergeOverwrite (deepCopy .) $selector | toYaml | nindent 4 }}
{{- end }}
{{- end -}}

{{/* What all containers have in common: root, resources. */}}
{{- define "dispatch-admission.container" -}}
{{- $root := first . -}}
# What it said last is in the status of the pod then.
terminationMessagePolicy: FallbackToLogsOnError
{{- with last . }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Image reference: registry of global, else of image; digest, else tag: root, what differs from image. */}}
{{- define "dispatch-admission.imageOf" -}}
{{- $root := first . -}}
{{- $own := last . | default dict -}}
{{- $image := $root.Values.image -}}
{{- if $own.repository -}}
{{- $image = mergeOverwrite (dict "registry" "" "tag" "" "digest" "") $own -}}
{{- else if or $own.tag $own.digest -}}
{{- $image = mergeOverwrite (deepCopy $image) (dict "tag" "" "digest" "") $own -}}
{{- else -}}
{{- $image = mergeOverwrite (deepCopy $image) $own -}}
{{- end -}}
{{- $global := $root.Values.global | default dict -}}
{{- with $global.imageRegistry | default $image.registry }}{{ . | trimSuffix "/" }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest -}}
@{{ $image.digest }}
{{- else -}}
:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "dispatch-admission.image" -}}
{{- include "dispatch-admission.imageOf" (list . dict) -}}
{{- end -}}

{{- define "dispatch-admission.imagePullSecrets" -}}
{{- $global := .Values.global | default dict -}}
{{- with concat ($global.imagePullSecrets | default list) (.Values.imagePullSecrets | default list) | uniq -}}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* A binding of a role of the same name: root, name, kind of role, component, account, and namespace for a RoleBinding. */}}
{{- define "dispatch-admission.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  {{- include "dispatch-admission.metadata" (set . "namespaced" (eq .kind "Role")) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .name | quote }}
subjects:
  - kind: ServiceAccount
    name: {{ .account | quote }}
    namespace: {{ .root.Release.Namespace | quote }}
{{- end -}}

{{/* A ServiceAccount: root, name, component. */}}
{{- define "dispatch-admission.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "dispatch-admission.metadata" (set . "annotations" .root.Values.serviceAccount.annotations) | nindent 2 }}
# The pods that need the token ask for it.
automountServiceAccountToken: false
{{- end -}}

{{/*
The PodDisruptionBudget of a component: root, component, name, replicas. One replica has
none, because it would block every drain of its node.
*/}}
{{- define "dispatch-admission.disruptionBudget" -}}
{{- $budget := .root.Values.podDisruptionBudget -}}
{{- if and $budget.enabled (or (kindIs "invalid" .replicas) (gt (int .replicas) 1)) -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "dispatch-admission.metadata" . | nindent 2 }}
spec:
  {{- if kindIs "invalid" $budget.maxUnavailable }}
  minAvailable: {{ $budget.minAvailable }}
  {{- else }}
  maxUnavailable: {{ $budget.maxUnavailable }}
  {{- end }}
  # A pod that is not ready protects nobody.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "dispatch-admission.selectorLabels" (list .root .component) | nindent 6 }}
{{- end -}}
{{- end -}}

{{/* The controller's flags about queues, as JSON. In every mode it tells what is missing. */}}
{{- define "dispatch-admission.queueFlags" -}}
{{- $attach := .Values.clusterQueues.attach -}}
{{- $queues := include "dispatch-admission.attachQueues" . | fromJsonArray -}}
{{- $flags := list -}}
{{- if $attach.selector -}}
{{- $flags = append $flags (printf "-queue-selector=%s" $attach.selector) -}}
{{- end -}}
{{- if $queues -}}
{{- $flags = append $flags (printf "-queues=%s" (join "," $queues)) -}}
{{- end -}}
{{- if $flags -}}
{{- $flags = append $flags (printf "-queue-checks=%s" (include "dispatch-admission.attachChecks" . | fromJsonArray | join ",")) -}}
{{- with $attach.onFlavors -}}
{{- $flags = append $flags (printf "-queue-on-flavors=%s" (join "," .)) -}}
{{- end -}}
{{- if eq $attach.mode "Controller" -}}
{{- $flags = append $flags "-mend-queues" -}}
{{- end -}}
{{- end -}}
{{- toJson $flags -}}
{{- end -}}
