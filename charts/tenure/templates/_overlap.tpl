{{/*
Two operators on one namespace would both create pods for one agent. Roles have fixed names so that Helm's ownership check
refuses the same scope twice even without this; here the overlaps between a cluster-wide and a namespaced release, and
sentences. lookup answers nothing in `helm template`, and an error where the user may not read: hence what is looked at.
*/}}
{{- define "tenure.refuseOverlap" -}}
{{- $root := . -}}
{{- if not .Values.watchNamespaces -}}
{{- include "tenure.refuseForeign" (list $root (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "tenure-operator") "every namespace") -}}
{{- range (lookup "rbac.authorization.k8s.io/v1" "Role" "" "").items -}}
{{- if eq .metadata.name "tenure-operator" -}}
{{- include "tenure.refuseForeign" (list $root . (printf "namespace %s" .metadata.namespace)) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- if or .Values.crds.install (eq (toString .Values.overlapCheck) "true") -}}
{{- include "tenure.refuseForeign" (list $root (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "tenure-operator") "every namespace") -}}
{{- end -}}
{{- range .Values.watchNamespaces -}}
{{- include "tenure.refuseForeign" (list $root (lookup "rbac.authorization.k8s.io/v1" "Role" . "tenure-operator") (printf "namespace %s" .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tenure.refuseForeign" -}}
{{- $root := index . 0 -}}{{- $found := index . 1 -}}{{- $scope := index . 2 -}}
{{- if $found -}}
{{- $annotations := default dict $found.metadata.annotations -}}
{{- $release := get $annotations "meta.helm.sh/release-name" -}}
{{- $namespace := get $annotations "meta.helm.sh/release-namespace" -}}
{{- if and $release (or (ne $release $root.Release.Name) (ne $namespace $root.Release.Namespace)) -}}
{{- fail (printf "\n\nrelease %s in namespace %s already watches %s, and two operators on one namespace would both act on its agents. Uninstall it first, or give each release its own watchNamespaces." $release $namespace $scope) -}}
{{- end -}}
{{- end -}}
{{- end -}}
