{{- /* The name of an image: a whole name, or repository, tag and digest. */ -}}
{{- define "tpu-functions.image" -}}
{{- $image := .root.Values.image }}
{{- $repository := $image.repository | default (first .root.Chart.Sources | replace "https://github.com" "ghcr.io" | lower) }}
{{- $digest := "" }}
{{- with get ($image.digests | default dict) .name }}{{ $digest = ternary (print "@" .) "" (empty $image.tag) }}{{ end }}
{{- index $image (camelcase .name | untitle) | default (printf "%s/%s:%s%s" $repository .name ($image.tag | default .root.Chart.AppVersion) $digest) }}
{{- end }}

{{- /* A document of a file in manifests/ with the values that concern it; as it stands, if none does. */ -}}
{{- define "tpu-functions.adapt" -}}
{{- $v := .root.Values }}
{{- $text := .text }}
{{- range $step, $user := $v.identity.users }}
  {{- $account := printf "kind: ServiceAccount\nmetadata:\n  name: %s\n  namespace: tpu-functions" $step }}
  {{- if contains $account $text }}{{ $text = "" }}{{ end }}
  {{- $subject := printf "  - kind: ServiceAccount\n    name: %s\n    namespace: tpu-functions" $step }}
  {{- $text = $text | replace $subject (printf "  - apiGroup: rbac.authorization.k8s.io\n    kind: User\n    name: %s" ($user | quote)) }}
  {{- $text = $text | replace (printf "'system:serviceaccount:tpu-functions:%s'" $step) ($user | squote) }}
{{- end }}
{{- if $v.identity.users }}
  {{- $accounts := "'system:serviceaccounts:tpu-functions' in request.userInfo.groups" }}
  {{- $users := printf "['%s']" (values $v.identity.users | sortAlpha | join "', '") }}
  {{- $text = $text | replace $accounts (printf "%s || request.userInfo.username in %s" $accounts $users) }}
{{- end }}
{{- if eq $v.joinApproval "external" }}
  {{- $group := "['c3lzdGVtOmJvb3RzdHJhcHBlcnM6dHB1LWZ1bmN0aW9ucw==']" }}
  {{- $kubeadms := "['c3lzdGVtOmJvb3RzdHJhcHBlcnM6dHB1LWZ1bmN0aW9ucw==', 'c3lzdGVtOmJvb3RzdHJhcHBlcnM6a3ViZWFkbTpkZWZhdWx0LW5vZGUtdG9rZW4=']" }}
  {{- $text = $text | replace $group $kubeadms }}
{{- end }}
{{- with $v.tokenWriter.audience }}
  {{- $text = $text | replace "'https://kubernetes.default.svc.cluster.local'" (splitList "," . | join "', '" | squote) }}
{{- end }}
{{- if $v.identity.google.serviceAccount }}
  {{- $account := "kind: ServiceAccount\nmetadata:\n  name: relay\n" }}
  {{- $annotation := printf "  annotations:\n    iam.gke.io/gcp-service-account: %s\n" $v.identity.google.serviceAccount }}
  {{- $text = $text | replace $account (print $account $annotation) }}
{{- end }}
{{- $rule := "        - {protocol: TCP, port: %s}\n" }}
{{- $allowed := "" }}
{{- range prepend $v.network.apiServerPorts 443 | join "," | splitList "," | uniq }}{{ $allowed = print $allowed (printf $rule .) }}{{ end }}
{{- $text = $text | replace (print (printf $rule "443") (printf $rule "6443")) $allowed }}
{{- if eq $v.monitoring "google" }}
  {{- range $theirs, $googles := dict "monitoring.coreos.com/v1" "monitoring.googleapis.com/v1" "kind: PrometheusRule" "kind: Rules" "kind: PodMonitor\n" "kind: PodMonitoring\n" "podMetricsEndpoints:" "endpoints:" }}
    {{- $text = $text | replace $theirs $googles }}
  {{- end }}
{{- end }}
{{- $runbooks := $v.runbooks | default (printf "%s/blob/v%s/docs" (first .root.Chart.Sources) .root.Chart.AppVersion) }}
{{- $text = $text | replace "runbook_url: docs/" (printf "runbook_url: %s/" $runbooks) }}
{{- if contains "\nkind: MutatingWebhookConfiguration\n" $text }}
  {{- if eq $v.injectEnv.certificate "cert-manager" }}
    {{- $text = $text | replace "\nmetadata:\n" "\nmetadata:\n  annotations:\n    cert-manager.io/inject-ca-from: tpu-functions/inject-env-ca\n" }}
  {{- else }}
    {{- $text = $text | replace "clientConfig: {" (printf "clientConfig: {caBundle: %s, " .ca) }}
  {{- end }}
{{- end }}
{{- if and (contains "\nkind: CustomResourceDefinition\n" $text) (not $v.crds.install) }}{{ $text = "" }}{{ end }}
{{- if contains "\nkind: Deployment\n" $text }}
  {{- $text = include "tpu-functions.deployment" (dict "root" .root "text" $text) }}
{{- end }}
{{- $text }}
{{- end }}

{{- /* A Deployment with its image and the values for Pods. */ -}}
{{- define "tpu-functions.deployment" -}}
{{- $v := .root.Values }}
{{- $deployment := fromYaml .text }}
{{- $template := $deployment.spec.template }}
{{- $pod := $template.spec }}
{{- $container := first $pod.containers }}
{{- $name := trimPrefix "tpu-functions-" $container.image }}
{{- $_ := set $container "image" (include "tpu-functions.image" (dict "root" .root "name" $name)) }}
{{- $annotations := deepCopy ($v.pods.annotations | default dict) }}
{{- $tolerations := $v.pods.tolerations | default list }}
{{- $env := concat ($container.env | default list) ($v.pods.env | default list) }}
{{- if eq $name "inject-env" }}
  {{- $_ = set $deployment.spec "replicas" $v.injectEnv.replicas }}
  {{- $env = concat $env ($v.injectEnv.env | default list) }}
  {{- range $v.injectEnv.env }}
    {{- if eq .name "PORT" }}{{ $_ = set (first $container.ports) "containerPort" (int .value) }}{{ end }}
  {{- end }}
{{- end }}
{{- if eq $name "relay" }}
  {{- /* A change of the settings restarts it. */ -}}
  {{- $_ = set $annotations "tpu-functions.dev/settings" (include "tpu-functions.settings" .root | sha256sum | trunc 16) }}
  {{- $volume := dict }}
  {{- if $v.identity.google.audience }}
    {{- $token := dict "path" "token" "audience" $v.identity.google.audience "expirationSeconds" 3600 }}
    {{- $sources := list (dict "serviceAccountToken" $token) (dict "configMap" (dict "name" "relay-google-credentials")) }}
    {{- $volume = dict "name" "google-credentials" "projected" (dict "sources" $sources) }}
  {{- else if $v.identity.google.keySecret }}
    {{- $volume = dict "name" "google-credentials" "secret" (dict "secretName" $v.identity.google.keySecret) }}
  {{- end }}
  {{- if $volume }}
    {{- $file := ternary "credential-configuration.json" "key.json" (hasKey $volume "projected") }}
    {{- $env = append $env (dict "name" "GOOGLE_APPLICATION_CREDENTIALS" "value" (print "/var/run/secrets/google/" $file)) }}
    {{- $mount := dict "name" "google-credentials" "mountPath" "/var/run/secrets/google" "readOnly" true }}
    {{- $_ = set $container "volumeMounts" (append ($container.volumeMounts | default list) $mount) }}
    {{- $_ = set $pod "volumes" (append ($pod.volumes | default list) $volume) }}
  {{- end }}
{{- end }}
{{- if $v.pods.onControlPlane }}
  {{- $controlPlane := dict "key" "node-role.kubernetes.io/control-plane" "operator" "Exists" }}
  {{- $tolerations = append $tolerations (merge (dict "effect" "NoSchedule") $controlPlane) }}
  {{- $term := first $pod.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms }}
  {{- $_ = set $term "matchExpressions" (append $term.matchExpressions $controlPlane) }}
{{- end }}
{{- with $annotations }}{{ $_ = set $template.metadata "annotations" . }}{{ end }}
{{- with $tolerations }}{{ $_ = set $pod "tolerations" . }}{{ end }}
{{- with $env }}{{ $_ = set $container "env" . }}{{ end }}
{{- with $v.pods.nodeSelector }}{{ $_ = set $pod "nodeSelector" . }}{{ end }}
{{- range $v.image.pullSecrets }}
  {{- $_ = set $pod "imagePullSecrets" (append ($pod.imagePullSecrets | default list) (dict "name" .)) }}
{{- end }}
{{- toYaml $deployment }}
{{- end }}
