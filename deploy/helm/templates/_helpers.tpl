{{- define "lapse.name" -}}
{{ printf "%s-worker" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "lapse.selector" -}}
app.kubernetes.io/name: lapse
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lapse.labels" -}}
{{ include "lapse.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "lapse.secret" -}}
{{- if .Values.existingSecret -}}
{{ .Values.existingSecret }}
{{- else -}}
{{- if not (and .Values.secret.LAPSE_URL .Values.secret.LAPSE_CONSOLE_TOKEN) -}}
{{- fail "name a Secret with LAPSE_URL and LAPSE_CONSOLE_TOKEN in existingSecret, or give both in secret" -}}
{{- end -}}
{{ include "lapse.name" . }}
{{- end -}}
{{- end }}

{{- define "lapse.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}
