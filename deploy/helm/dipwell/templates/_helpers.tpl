{{- define "dipwell.name" -}}
{{ if contains "dipwell" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-dipwell{{ end }}
{{- end }}

{{- define "dipwell.selector" -}}
app.kubernetes.io/name: dipwell
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dipwell.metadata" -}}
name: {{ include "dipwell.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "dipwell.selector" . | nindent 2 }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
