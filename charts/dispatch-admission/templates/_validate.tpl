{{/* Fails unless a map has exactly one of some keys: path of the map, map, keys. */}}
{{- define "dispatch-admission.exactlyOne" -}}
{{- $map := index . 1 -}}
{{- $keys := index . 2 -}}
{{- $has := list -}}
{{- range $keys -}}{{- if hasKey $map . -}}{{- $has = append $has . -}}{{- end -}}{{- end -}}
{{- if not $has -}}
{{- fail (printf "%s: has none of %s; give it one" (first .) (join ", " $keys)) -}}
{{- else if gt (len $has) 1 -}}
{{- fail (printf "%s: has %s, which exclude each other; keep one" (first .) (join " and " $has)) -}}
{{- end -}}
{{- end -}}

{{/* Fails if two entries of a list have the same name: path of the list, list. */}}
{{- define "dispatch-admission.namesOnce" -}}
{{- $path := first . -}}
{{- $names := list -}}
{{- range $i, $entry := last . -}}
{{- if has $entry.name $names -}}
{{- fail (printf "%s[%d].name: there are two entries named %q; take one out" $path $i $entry.name) -}}
{{- end -}}
{{- $names = append $names $entry.name -}}
{{- end -}}
{{- end -}}

{{/* A duration of Go in seconds. */}}
{{- define "dispatch-admission.seconds" -}}
{{- $seconds := 0.0 -}}
{{- range regexFindAll "[0-9]+(\\.[0-9]+)?(ms|s|m|h)" . -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- $seconds = addf $seconds (mulf (trimSuffix $unit . | float64) (get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0) $unit)) -}}
{{- end -}}
{{- $seconds -}}
{{- end -}}

{{/* Fails if a hook of a gate contradicts itself: its path, hook. */}}
{{- define "dispatch-admission.validateHook" -}}
{{- $path := first . -}}
{{- $hook := last . | default dict -}}
{{- if hasKey $hook "endpoint" -}}
{{- include "dispatch-admission.exactlyOne" (list (printf "%s.endpoint" $path) $hook.endpoint (list "url" "unixSocket")) -}}
{{- end -}}
{{- range $field, $source := $hook.attempt | default dict -}}
{{- include "dispatch-admission.exactlyOne" (list (printf "%s.attempt.%s" $path $field) $source (list "label" "annotation")) -}}
{{- end -}}
{{- end -}}
