{{- define "tpu-functions.settings" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: relay
  namespace: tpu-functions
  labels:
    app.kubernetes.io/name: relay
    app.kubernetes.io/component: relay
    app.kubernetes.io/part-of: tpu-functions
data:
  PUBSUB_PROJECT: {{ required "project: it is required with slices" .Values.project | quote }}
  TOPIC_PREFIX: {{ .Values.topicPrefix | quote }}
  PORT: "8080"
  {{- if ne .Values.slices.workloads "none" }}
  JOBSETS: "true"
  {{- end }}
  {{- if eq .Values.slices.workloads "all" }}
  SLICE_WORKLOADS: "true"
  {{- end }}
{{- if .Values.tokenWriter.enabled }}
{{- range list "server" "ca" "steps" }}
  {{- if not (index $.Values.tokenWriter .) }}{{ fail (printf "tokenWriter.%s: it is required with tokenWriter.enabled" .) }}{{ end }}
{{- end }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: token-writer
  namespace: tpu-functions
  labels:
    app.kubernetes.io/name: token-writer
    app.kubernetes.io/component: token-writer
    app.kubernetes.io/part-of: tpu-functions
data:
  CLUSTER_SERVER: {{ .Values.tokenWriter.server | quote }}
  CLUSTER_CA: {{ .Values.tokenWriter.ca | quote }}
  STEPS: {{ join "," .Values.tokenWriter.steps | quote }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: token-writer-access
  namespace: tpu-functions
  labels:
    app.kubernetes.io/name: token-writer
    app.kubernetes.io/component: token-writer
    app.kubernetes.io/part-of: tpu-functions
data:
  kubeconfig: |
    {{- .Files.Get "manifests/token-writer/kubeconfig" | nindent 4 }}
{{- end }}
{{- with .Values.identity.google.audience }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: relay-google-credentials
  namespace: tpu-functions
  labels:
    app.kubernetes.io/name: relay
    app.kubernetes.io/component: relay
    app.kubernetes.io/part-of: tpu-functions
data:
  credential-configuration.json: |
    {
      "type": "external_account",
      "audience": {{ . | quote }},
      "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
      "token_url": "https://sts.googleapis.com/v1/token",
      "credential_source": {"file": "/var/run/secrets/google/token"}
    }
{{- end }}
{{- end }}
