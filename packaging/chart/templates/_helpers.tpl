{{- define "headgate.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "headgate.agentImage" -}}
{{ .Values.agentImage.repository }}:{{ .Values.agentImage.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "headgate.envoyImage" -}}
{{ .Values.envoyImage.repository }}:{{ .Values.envoyImage.tag | default .Chart.AppVersion }}
{{- end }}
