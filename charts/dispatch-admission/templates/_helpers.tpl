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

{{/* Name of the Role for the Lease and of its binding. */}}
{{- define "dispatch-admission.leaseRoleName" -}}
{{- printf "%s-lease" (include "dispatch-admission.fullname" . | trunc 57 | trimSuffix "-") -}}
{{- end -}}

{{- define "dispatch-admission.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "dispatch-admission.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Where the Lease is. The flags, the Role and the notes all ask here. */}}
{{- define "dispatch-admission.leaseNamespace" -}}
{{- default .Release.Namespace .Values.lease.namespace -}}
{{- end -}}

{{/*
Selector of the controller. It can never change, or no release can be upgraded: no
version, no chart, no value of the user's.
*/}}
{{- define "dispatch-admission.selectorLabels" -}}
app.kubernetes.io/name: dispatch-admission
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end -}}

{{- define "dispatch-admission.labels" -}}
{{- $ours := dict -}}
{{- $_ := set $ours "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- $_ = set $ours "app.kubernetes.io/version" (.Chart.AppVersion | replace "+" "_" | trunc 63) -}}
{{- $_ = set $ours "app.kubernetes.io/managed-by" .Release.Service -}}
{{- $_ = set $ours "app.kubernetes.io/part-of" "dispatch-admission" -}}
{{- $selector := include "dispatch-admission.selectorLabels" . | fromYaml -}}
{{- mergeOverwrite (dict) (.Values.commonLabels | default dict) $ours $selector | toYaml -}}
{{- end -}}

{{/* Image reference: registry of global, else of image; digest, else tag. */}}
{{- define "dispatch-admission.image" -}}
{{- $global := .Values.global | default dict -}}
{{- $registry := $global.imageRegistry | default .Values.image.registry -}}
{{- with $registry }}{{ . | trimSuffix "/" }}/{{ end -}}
{{- .Values.image.repository -}}
{{- if .Values.image.digest -}}
@{{ .Values.image.digest }}
{{- else -}}
:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "dispatch-admission.imagePullSecrets" -}}
{{- $global := .Values.global | default dict -}}
{{- with concat ($global.imagePullSecrets | default list) (.Values.imagePullSecrets | default list) | uniq -}}
imagePullSecrets:
{{ toYaml . }}
{{- end -}}
{{- end -}}
