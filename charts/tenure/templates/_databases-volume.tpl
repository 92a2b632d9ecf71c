{{/*
The directory that TENURE_DATABASES_DIR names: one folder per database, with url, namespaces and, for the store, store.
*/}}
{{- define "tenure.databasesVolume" -}}
{{- $databases := include "tenure.databases" . | fromJson -}}
- name: databases
  {{- if $databases }}
  projected:
    defaultMode: 0440
    sources:
      {{- range $name, $database := $databases }}
      - secret:
          name: {{ $database.existingSecret }}
          items:
            - key: {{ $database.key }}
              path: {{ $name }}/url
      {{- end }}
      - configMap:
          name: {{ include "tenure.fullname" . }}-databases
          items:
            {{- range $name, $database := $databases }}
            - key: {{ $name }}.namespaces
              path: {{ $name }}/namespaces
            {{- if $database.store }}
            - key: {{ $name }}.store
              path: {{ $name }}/store
            {{- end }}
            {{- end }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end -}}

{{/* The store alone, without the ConfigMap. */}}
{{- define "tenure.storeVolume" -}}
{{- $store := include "tenure.store" . -}}
{{- $database := get (include "tenure.databases" . | fromJson) $store -}}
- name: databases
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ default $database.existingSecret .Values.migrate.existingSecret }}
          items:
            - key: {{ ternary .Values.migrate.key $database.key (ne .Values.migrate.existingSecret "") }}
              path: {{ $store }}/url
      - downwardAPI:
          items:
            # Only has to exist; the ConfigMap that marks the store comes after this hook.
            - path: {{ $store }}/store
              fieldRef:
                fieldPath: metadata.name
{{- end -}}
