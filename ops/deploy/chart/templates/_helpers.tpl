{{/* Names have room for "keda-hpa-<release>-worker-<site>" in 63 characters. */}}
{{- define "fedil.name" -}}
{{- if gt (len .Release.Name) 25 }}{{ fail (printf "release name %q is longer than 25 characters" .Release.Name) }}{{ end -}}
{{ .Release.Name }}
{{- end }}

{{- define "fedil.selector" -}}
app.kubernetes.io/name: fedil
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- if .site }}
fedil.site: {{ .site }}
{{- end }}
{{- end }}

{{- define "fedil.labels" -}}
{{ include "fedil.selector" . }}
app.kubernetes.io/part-of: fedil
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* What Prometheus finds pods by: kubernetes.yml of `fedil monitoring` */}}
{{- define "fedil.scraped" -}}
prometheus.io/scrape: "true"
prometheus.io/port: "8265"
{{- end }}

{{- define "fedil.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "fedil.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "fedil.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Of a server's or a site's pods; the rest of the pod is in server.yaml and workers.yaml */}}
{{- define "fedil.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
# Makes our process another than number 1, which would ignore a SIGTERM that it has no handler for yet.
shareProcessNamespace: true
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- include "fedil.podSecurity" 10001 | nindent 2 }}
{{- with .of.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "fedil.container" -}}
image: {{ include "fedil.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- include "fedil.containerSecurity" . | nindent 2 }}
env:
  {{- range list "FEDIL_BROKER_URL" "FEDIL_STORE_URL" }}
  - name: {{ . }}
    valueFrom:
      secretKeyRef:
        name: {{ $.of.credentialsSecret }}
        key: {{ . }}
  {{- end }}
# /healthz answers as soon as the process serves, also while a broker is away: that is no reason to start it again. A
# worker may deal its shards out before.
startupProbe:
  httpGet: &health
    path: /healthz
    port: web
  periodSeconds: 5
  failureThreshold: 120
livenessProbe:
  httpGet: *health
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 6
{{- with .of.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "fedil.mounts" -}}
- name: recipe
  mountPath: /etc/fedil/recipe
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- if .Values.tls.secret }}
- name: tls
  mountPath: /etc/fedil/tls
  readOnly: true
{{- end }}
{{- if .Values.data.existingClaim }}
- name: data
  mountPath: /data
  readOnly: true
{{- end }}
{{- end }}

{{- define "fedil.volumes" -}}
- name: recipe
  configMap:
    name: {{ include "fedil.name" . }}-recipe
- name: tmp
  emptyDir: {}
{{- with .Values.tls.secret }}
- name: tls
  secret:
    secretName: {{ . }}
{{- end }}
{{- with .Values.data.existingClaim }}
- name: data
  persistentVolumeClaim:
    claimName: {{ . }}
    readOnly: true
{{- end }}
{{- end }}
