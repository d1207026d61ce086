{{/* Name and account of what attaches and detaches queues. */}}
{{- define "dispatch-admission.wiringName" -}}
{{- include "dispatch-admission.named" (list . "wiring") -}}
{{- end -}}

{{/* Whether a Job attaches queues: only those that were created, if people attach the others. */}}
{{- define "dispatch-admission.attaches" -}}
{{- $queues := .Values.clusterQueues -}}
{{- if and .Values.jobs.enabled (include "dispatch-admission.attachArgs" . | fromJsonArray) -}}true{{- end -}}
{{- end -}}

{{/* The command lines that attach queues, as JSON. */}}
{{- define "dispatch-admission.attachArgs" -}}
{{- $attach := .Values.clusterQueues.attach -}}
{{- $common := list (printf "--timeout=%s" $attach.timeout) -}}
{{- range include "dispatch-admission.attachChecks" . | fromJsonArray -}}
{{- $common = append $common (printf "--check=%s" .) -}}
{{- end -}}
{{- with $attach.onFlavors -}}
{{- $common = append $common (printf "--on-flavors=%s" (join "," .)) -}}
{{- end -}}
{{- $names := list -}}
{{- if ne $attach.mode "Manual" -}}{{- $names = $attach.names -}}{{- end -}}
{{- range .Values.clusterQueues.create -}}{{- $names = append $names .name -}}{{- end -}}
{{- $lines := list -}}
{{- with $names | uniq | sortAlpha -}}
{{- $lines = append $lines (concat (list "queues" "attach") . $common) -}}
{{- end -}}
{{- if and $attach.selector (ne $attach.mode "Manual") -}}
{{- $lines = append $lines (concat (list "queues" "attach" (printf "--selector=%s" $attach.selector)) $common) -}}
{{- end -}}
{{- toJson $lines -}}
{{- end -}}

{{/* The spec of a Job that runs command lines of dispatchctl, one after the other: root, lines, deadline. */}}
{{- define "dispatch-admission.jobSpec" -}}
{{- $root := .root -}}
backoffLimit: 2
# One that failed is nobody's once the release is gone. For a day its log can be read.
ttlSecondsAfterFinished: 86400
activeDeadlineSeconds: {{ .deadline }}
template:
  metadata:
    {{- include "dispatch-admission.podMetadata" (dict "root" $root "component" "wiring") | nindent 4 }}
  spec:
    restartPolicy: Never
    serviceAccountName: {{ include "dispatch-admission.wiringName" $root | quote }}
    automountServiceAccountToken: true
    {{- include "dispatch-admission.pod" $root | nindent 4 }}
    {{- range $i, $line := .lines }}
    {{- $last := eq (add1 $i) (len $.lines) }}
    {{- if eq $i 0 }}
    {{ $last | ternary "containers" "initContainers" }}:
    {{- else if $last }}
    containers:
    {{- end }}
      - name: {{ printf "dispatchctl-%d" $i | quote }}
        image: {{ include "dispatch-admission.image" $root | quote }}
        imagePullPolicy: {{ $root.Values.image.pullPolicy }}
        command: [dispatchctl]
        args:
          {{- toYaml $line | nindent 10 }}
        {{- include "dispatch-admission.container" (list $root $root.Values.jobs.resources) | nindent 8 }}
    {{- end }}
{{- end -}}
