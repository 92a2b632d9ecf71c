{{- define "tenure.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters, so that every suffix used here stays within 63. */}}
{{- define "tenure.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "tenure.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "tenure.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tenure.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tenure.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* What only the operator's own pods have. */}}
{{- define "tenure.operatorLabels" -}}
{{ include "tenure.selectorLabels" . }}
app.kubernetes.io/component: operator
{{- end -}}

{{/* A map as a=b,c=d. */}}
{{- define "tenure.pairs" -}}
{{- $pairs := list -}}
{{- range $key, $value := . -}}{{- $pairs = append $pairs (printf "%s=%s" $key $value) -}}{{- end -}}
{{- join "," $pairs -}}
{{- end -}}

{{- define "tenure.labels" -}}
{{ include "tenure.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: tenure
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "tenure.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tenure.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tenure.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "tenure.trial.name" -}}
{{- printf "%s-trial-postgresql" (include "tenure.fullname" .) -}}
{{- end -}}

{{- define "tenure.trial.image" -}}
{{- with .Values.trialPostgresql.image -}}
{{- if .digest -}}{{- printf "%s@%s" .repository .digest -}}{{- else -}}{{- printf "%s:%s" .repository .tag -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" or nothing. ON and OFF are taken as they are; auto means: only for a cluster-wide release. */}}
{{- define "tenure.clusterScoped" -}}
{{- $setting := index . 0 -}}{{- $values := index . 1 -}}
{{- if kindIs "bool" $setting -}}
{{- if $setting -}}true{{- end -}}
{{- else if not $values.watchNamespaces -}}
true
{{- end -}}
{{- end -}}

{{/*
The databases as one map, the trial one among them. Each: existingSecret, key, namespaces, store. JSON, because a named
template returns text.
*/}}
{{- define "tenure.databases" -}}
{{- $all := dict -}}
{{- range $name, $database := .Values.databases -}}
{{- $_ := set $all $name (mustMergeOverwrite (dict "key" "url" "namespaces" (list "*") "store" false) $database) -}}
{{- end -}}
{{- if .Values.trialPostgresql.enabled -}}
{{- $_ := set $all "default" (dict "existingSecret" (include "tenure.trial.name" .) "key" "url" "namespaces" (list "*") "store" true) -}}
{{- end -}}
{{- $all | toJson -}}
{{- end -}}

{{/* The name of the store, or nothing. */}}
{{- define "tenure.store" -}}
{{- range $name, $database := include "tenure.databases" . | fromJson -}}
{{- if $database.store -}}{{- $name -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tenure.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "tenure.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "tenure.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* For cluster-scoped objects: releases of one name in several namespaces do not collide. */}}
{{- define "tenure.clusterName" -}}
{{- if .Values.watchNamespaces -}}
{{- printf "%s-%s" .Release.Namespace (include "tenure.fullname" .) -}}
{{- else -}}
{{- include "tenure.fullname" . -}}
{{- end -}}
{{- end -}}

{{- define "tenure.trial.host" -}}
{{- if .Values.trialPostgresql.service.clusterIP -}}
{{- .Values.trialPostgresql.service.clusterIP -}}
{{- else -}}
{{- printf "%s.%s.svc" (include "tenure.trial.name" .) .Release.Namespace -}}
{{- end -}}
{{- end -}}

{{/* A selector of the namespaces that this release works in. */}}
{{- define "tenure.watchedNamespaces" -}}
{{- if .Values.watchNamespaces -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: In
    values:
      {{- toYaml .Values.watchNamespaces | nindent 6 }}
{{- else -}}
{}
{{- end -}}
{{- end -}}

{{- define "tenure.admissionScope" -}}
{{- if .Values.watchNamespaces -}}
matchResources:
  namespaceSelector:
    {{- include "tenure.watchedNamespaces" . | nindent 4 }}
{{- end -}}
{{- end -}}
