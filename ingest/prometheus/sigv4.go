package prometheus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/prometheus/common/config"
)

// SigV4 signs requests for Amazon Managed Prometheus. What is empty comes from the
// SDK's usual places: environment, profile, web identity, instance.
type SigV4 struct {
	Region    string        `yaml:"region"`
	Profile   string        `yaml:"profile"`
	RoleARN   string        `yaml:"role_arn"` // assumed with the credentials found
	AccessKey string        `yaml:"access_key"`
	SecretKey config.Secret `yaml:"secret_key"`
}

func (c *SigV4) validate() error {
	if (c.AccessKey == "") != (c.SecretKey == "") {
		return errors.New("sigv4: access_key and secret_key go together")
	}
	return nil
}

// ampService is the name that Amazon Managed Prometheus has in a signature
// (https://docs.aws.amazon.com/prometheus/latest/userguide/AMP-compatible-APIs.html).
const ampService = "aps"

// awsTransport signs each request. Credentials are looked for at the first one, as
// that may take the network.
type awsTransport struct {
	cfg    SigV4
	next   http.RoundTripper
	signer *v4.Signer

	mu     sync.Mutex
	found  aws.CredentialsProvider
	region string
}

func newAWSTransport(cfg SigV4, next http.RoundTripper) *awsTransport {
	return &awsTransport{cfg: cfg, next: next, signer: v4.NewSigner()}
}

func (t *awsTransport) credentials(ctx context.Context) (aws.CredentialsProvider, string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.found != nil {
		return t.found, t.region, nil
	}
	options := []func(*awsconfig.LoadOptions) error{}
	if t.cfg.Region != "" {
		options = append(options, awsconfig.WithRegion(t.cfg.Region))
	}
	if t.cfg.Profile != "" {
		options = append(options, awsconfig.WithSharedConfigProfile(t.cfg.Profile))
	}
	if t.cfg.AccessKey != "" {
		options = append(options, awsconfig.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(t.cfg.AccessKey, string(t.cfg.SecretKey), "")))
	}
	loaded, err := awsconfig.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, "", fmt.Errorf("sigv4: %w", err)
	}
	if loaded.Region == "" {
		return nil, "", errors.New("sigv4: no region: set sigv4.region, such as eu-central-1")
	}
	found := loaded.Credentials
	if t.cfg.RoleARN != "" {
		found = aws.NewCredentialsCache(stscreds.NewAssumeRoleProvider(sts.NewFromConfig(loaded), t.cfg.RoleARN))
	}
	t.found, t.region = found, loaded.Region
	return t.found, t.region, nil
}

// RoundTrip implements http.RoundTripper.
func (t *awsTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	provider, region, err := t.credentials(req.Context())
	if err != nil {
		return nil, err
	}
	who, err := provider.Retrieve(req.Context())
	if err != nil {
		return nil, fmt.Errorf("sigv4: %w", err)
	}
	sum := sha256.New()
	if req.Body != nil && req.Body != http.NoBody {
		if req.GetBody == nil {
			return nil, errors.New("sigv4: a body that can be read only once")
		}
		body, err := req.GetBody()
		if err != nil {
			return nil, err
		}
		if _, err := io.Copy(sum, body); err != nil {
			return nil, err
		}
	}
	signed := req.Clone(req.Context()) // a RoundTripper may not change its request
	if err := t.signer.SignHTTP(req.Context(), who, signed, hex.EncodeToString(sum.Sum(nil)), ampService, region, time.Now()); err != nil {
		return nil, fmt.Errorf("sigv4: %w", err)
	}
	return t.next.RoundTrip(signed)
}
