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
